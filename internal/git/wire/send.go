package wire

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"lockstep/internal/egress"
	"lockstep/internal/git"
)

// Sender sends HTTP requests that belong to a repository but not to the Git protocol, such as those of Git
// LFS, by the same rules as a [Session]. It is safe for concurrent use.
type Sender struct {
	Network *Network
	Remote  string // URL of the repository; other origins are foreign
	Foreign bool   // so is Remote
	Limits  Limits

	// Auth returns the credential for a URL, zero for none.
	Auth func(ctx context.Context, url string) (Auth, error)
}

// Request is one HTTP request.
type Request struct {
	Method string
	URL    string      // http or https
	Header http.Header // sent to URL, but not to where it redirects
	Body   []byte

	// A request gets a credential unless it has its own: an Authorization header, or a token in the query.
	NoAuth   bool // send none, redirect targets included
	OnDemand bool // send it only after URL has answered 401; for redirect targets it is always so

	MaxBytes int64 // of the response, before and after decompression
}

// Status is an HTTP status from 400 to 499 that does not limit the rate.
type Status struct {
	Code      int
	Anonymous bool // no credential was sent
}

func (e *Status) Error() string { return fmt.Sprintf("HTTP status %d", e.Code) }

// Send sends a request through the limiter, follows redirects with the same method, and passes a successful
// response to read, which must consume its body. It returns a *[Status], an error as of a session, or that of
// Auth or read, unchanged.
func (s *Sender) Send(ctx context.Context, req Request, read func(*http.Response) error) error {
	target, err := url.Parse(req.URL)
	if err != nil {
		return errors.New("the URL does not parse")
	}
	w := &monitor{
		maxPack: req.MaxBytes, timeouts: s.Network.timeouts(hostPort(target)),
		next: &route{net: s.Network, foreign: s.Foreign},
	}
	if origin, err := url.Parse(s.Remote); err == nil {
		w.next.(*route).origin = origin
	}
	return s.Limits.limited(ctx, hostPort(target), w, func() error { return s.send(ctx, w, target, req, read) })
}

func (s *Sender) send(
	ctx context.Context, w *monitor, target *url.URL, req Request, read func(*http.Response) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, s.Limits.Timeout)
	defer cancel()
	w.begin()
	header, onDemand := req.Header, req.OnDemand
	for {
		next, auth, err := s.ask(ctx, w, target, req, header, onDemand, read)
		if next == nil || err != nil {
			return s.fault(ctx, w, target, auth, err)
		}
		kept := http.Header{}
		for _, name := range []string{"Accept", "Content-Type", "Range"} {
			if values := req.Header.Values(name); len(values) > 0 {
				kept[name] = values
			}
		}
		target, header, onDemand = next, kept, true
	}
}

// ask sends the request to one URL, with the credential for it if it needs one. It returns the target of a redirect.
func (s *Sender) ask(
	ctx context.Context, w *monitor, target *url.URL, req Request, header http.Header, onDemand bool,
	read func(*http.Response) error,
) (next *url.URL, auth Auth, err error) {
	if onDemand {
		next, err = s.hop(ctx, w, target, req, header, Auth{}, read)
		if status, ok := errors.AsType[*Status](err); !ok || status.Code != http.StatusUnauthorized {
			return next, Auth{}, err
		}
	}
	if !req.NoAuth && !hasOwnAuth(header, target) {
		var authErr error
		if auth, authErr = s.Auth(ctx, target.String()); authErr != nil {
			return nil, Auth{}, &callerError{authErr}
		}
	}
	if onDemand && auth.IsZero() {
		return nil, auth, err // the 401
	}
	next, err = s.hop(ctx, w, target, req, header, auth, read)
	return next, auth, err
}

// hasOwnAuth reports whether a request authenticates itself: requestHasAuth of git-lfs.
func hasOwnAuth(header http.Header, target *url.URL) bool {
	return header.Get("Authorization") != "" || target.Query().Get("token") != ""
}

// hop sends the request to one URL. It returns the target of a redirect.
func (s *Sender) hop(
	ctx context.Context, w *monitor, target *url.URL, req Request, header http.Header, auth Auth,
	read func(*http.Response) error,
) (next *url.URL, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out, err := http.NewRequestWithContext(ctx, req.Method, target.String(), bytes.NewReader(req.Body))
	if err != nil {
		return nil, w.record(errRedirectNowhere)
	}
	out.Header = header.Clone()
	if out.Header == nil {
		out.Header = http.Header{}
	}
	out.Header.Set("User-Agent", capability.DefaultAgent())
	out.Header.Set("Accept-Encoding", "identity") // a range of a compressed response would be of other bytes
	auth.setHeader(out)
	first := w.timeouts.awaitFirst(cancel, false)
	defer first.Stop()
	res, err := w.next.RoundTrip(out)
	if err != nil {
		return nil, w.record(timeoutOr(ctx, err))
	}
	defer res.Body.Close()
	w.answered(res.StatusCode, res.Header)
	switch {
	case isRedirect(res.StatusCode):
		return redirectTarget(w, res)
	case res.StatusCode >= 300:
		return nil, statusOrFault(w, res, auth.IsZero() && header.Get("Authorization") == "")
	}
	content, err := decompressed(res, req.MaxBytes)
	if err != nil {
		return nil, w.record(timeoutOr(ctx, err))
	}
	body := w.limit(ctx, cancel, first, content, false)
	defer body.Close()
	res.Body = body
	if err := read(res); err != nil {
		return nil, &callerError{err}
	}
	return nil, nil
}

// decompressed returns the content of a response: some servers compress it although they are asked not to. It limits
// the compressed bytes, because an endless stream may have no content; compression adds at most 0.1 %. A range is one
// of compressed bytes, so it stays as it is.
func decompressed(res *http.Response, maxBytes int64) (io.ReadCloser, error) {
	if !strings.EqualFold(res.Header.Get("Content-Encoding"), "gzip") || res.StatusCode == http.StatusPartialContent {
		return res.Body, nil
	}
	res.Header.Del("Content-Encoding")
	content, err := gzip.NewReader(http.MaxBytesReader(nil, res.Body, maxBytes+maxBytes/1000))
	return struct {
		io.Reader
		io.Closer
	}{content, res.Body}, err
}

// callerError is an error of Auth, or of the function that reads a response.
type callerError struct{ err error }

func (e *callerError) Error() string { return e.err.Error() }
func (e *callerError) Unwrap() error { return e.err }

func redirectTarget(w *monitor, res *http.Response) (*url.URL, error) {
	if err := redirectFaultOf(res, w.countRedirect()); err != nil {
		return nil, w.record(err)
	}
	to, err := res.Location()
	if err != nil || to.Hostname() == "" || to.User != nil {
		return nil, w.record(errRedirectNowhere)
	}
	return to, nil
}

func statusOrFault(w *monitor, res *http.Response, anonymous bool) error {
	status := statusOf(res, time.Now())
	if status.code < 500 && !status.limited {
		return &Status{Code: status.code, Anonymous: anonymous}
	}
	return w.record(status)
}

// fault classifies an error of a request to target.
func (s *Sender) fault(ctx context.Context, w *monitor, target *url.URL, auth Auth, err error) error {
	fault := w.firstError()
	status, isStatus := errors.AsType[*Status](err)
	own, isOwn := errors.AsType[*callerError](err)
	switch {
	case err == nil:
		return nil
	case isStatus:
		return status
	case isOwn && fault == nil:
		return own.err
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return git.Errorf(git.Retryable, git.ClassNetwork,
			"%s took longer than %v; raise fetch-timeout in the setting limits if the file is meant to be that large",
			target.Host, s.Limits.Timeout)
	}
	if errors.Is(fault, errTooLong) {
		return git.Errorf(git.Permanent, git.ClassQuota, "%s sent a response of more than %d bytes", target.Host, w.maxPack)
	}
	if refused, ok := errors.AsType[*egress.Fault](fault); ok {
		return git.Errorf(git.Permanent, git.ClassConfig, "%s",
			(&egress.Fault{Host: target.Hostname(), Why: refused.Why}).Error())
	}
	return remoteError(ctx, target.Host, auth, fault, err)
}
