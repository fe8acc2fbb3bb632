package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"

	"lockstep/internal/git"
	"lockstep/internal/git/pkt"
)

// responseFault is a response that cannot be used. Its text follows the name of the host.
type responseFault struct {
	text  string
	retry git.Retry
	class git.Class
}

func (e *responseFault) Error() string { return "the remote " + e.text }

func (e *responseFault) classify(host string) error {
	return git.Errorf(e.retry, e.class, "%s %s", host, e.text)
}

func serverFault(text string) *responseFault {
	return &responseFault{text, git.Retryable, git.ClassServer}
}

var (
	errNotGit = serverFault("sent a response that is not Git protocol; check that the URL is that of a " +
		"Git repository")
	errEmptyReply   = serverFault("sent an empty response")
	errTruncated    = serverFault("ended its response too early; see the server's log")
	errSidebandText = serverFault("failed while it prepared or sent the pack; see the server's log")
	errSideband     = serverFault("sent a pack in an unknown side-band")
	errLongPrologue = &responseFault{
		fmt.Sprintf("sent more than %d MiB of shallow commits before the pack; use another depth", maxPrologue>>20),
		git.Permanent, git.ClassQuota,
	}
	errEmptyRepository = &responseFault{
		"has an empty repository; push a commit to it", git.Permanent, git.ClassNoRef,
	}
	errFormat = &responseFault{
		"has an object format for this repository that is neither SHA-1 nor SHA-256, which is not supported; " +
			"use a repository with one of them",
		git.Permanent, git.ClassConfig,
	}
	errDumb = &responseFault{
		"serves the repository by the dumb HTTP protocol, which is not supported; let its web server run git http-backend",
		git.Permanent, git.ClassConfig,
	}
	errRedirectLoop   = serverFault("redirects 10 times in a row; check that the URL is that of the repository itself")
	errRedirectScheme = serverFault("redirects to a URL that is neither http nor https; correct the URL")
	errDowngrade      = serverFault("redirects from https to http, which is not followed; correct the URL")
	errRedirectFetch  = serverFault("redirects the request for objects; only the list of refs may be redirected: " +
		"use the URL that it redirects to")
	errRedirectNowhere = serverFault("redirects without a valid Location")
	errRedirectAway    = serverFault("redirects to a URL that is not that of a repository; correct the URL")
)

// startsLikeDumb matches a list of refs that is a file.
var startsLikeDumb = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})\t`)

var startsLikePktLine = regexp.MustCompile(`^[0-9a-fA-F]{1,4}`)

// faultOf explains an error about a response that begins with prefix.
func faultOf(err error, prefix []byte, listing bool) error {
	if fault, ok := errors.AsType[*responseFault](err); ok && (fault != errTruncated || len(prefix) > 0) {
		return fault
	}
	switch {
	case len(prefix) == 0:
		return errEmptyReply
	case listing && startsLikeDumb.Match(prefix):
		return errDumb
	case !startsLikePktLine.Match(prefix[:min(4, len(prefix))]):
		return errNotGit
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errTruncated
	}
	return errNotGit
}

// maxRedirects is the redirect of a request that is not followed.
const maxRedirects = 10

// redirectFault returns the reason not to follow a redirect of a session, or nil. redirects counts this one
// and the previous ones.
func redirectFault(res *http.Response, redirects int) error {
	if _, err := res.Location(); err == nil && res.Request.Method != http.MethodGet {
		return errRedirectFetch
	}
	return redirectFaultOf(res, redirects)
}

// redirectFaultOf is redirectFault for requests of any method.
func redirectFaultOf(res *http.Response, redirects int) error {
	to, err := res.Location()
	switch {
	case err != nil:
		return errRedirectNowhere
	case to.Scheme != "http" && to.Scheme != "https":
		return errRedirectScheme
	case res.Request.URL.Scheme == "https" && to.Scheme == "http":
		return errDowngrade
	case redirects >= maxRedirects:
		return errRedirectLoop
	}
	return nil
}

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect:
		return true
	}
	return false
}

// sidebandReader reads the pack from a response with a side-band. It fails unless the response ends with a
// flush packet, and if the server reports an error.
type sidebandReader struct {
	lines *pkt.Reader
	data  []byte // of the current line, not yet read
	ended bool
}

func (r *sidebandReader) Read(p []byte) (int, error) {
	for len(r.data) == 0 {
		if r.ended {
			return 0, io.EOF
		}
		line, kind, err := r.lines.Line()
		switch {
		case errors.Is(err, io.EOF):
			return 0, errTruncated
		case err != nil:
			return 0, err
		case kind == pkt.Flush:
			r.ended = true
			continue
		case len(line) == 0:
			return 0, errGarbage
		}
		switch line[0] {
		case 1:
			r.data = line[1:]
		case 2: // progress
		case 3:
			return 0, errSidebandText
		default:
			if why, ok := bytes.CutPrefix(bytes.TrimSuffix(line, []byte("\n")), []byte("ERR ")); ok {
				return 0, errorLine(why)
			}
			return 0, errSideband
		}
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}
