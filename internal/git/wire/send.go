package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
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
	Header http.Header // sent to URL, but not to where it redirects. With an Authorization, no credential is added
	Body   []byte
	NoAuth bool // add no credential to the request to URL

	MaxBytes int64 // of the response
}

// Status is an HTTP status from 400 to 499 that does not limit the rate.
type Status struct {
	Code      int
	Anonymous bool // no credential was sent
}

func (e *Status) Error() string { return fmt.Sprintf("HTTP status %d", e.Code) }

// Send sends a request through the limiter, follows redirects with the same method, and passes a successful
// response to read, which must consume its body. It returns a *[Status], an error as of a session, or that of
// read, unchanged.
func (s *Sender) Send(ctx context.Context, req Request, read func(*http.Response) error) error {
	target, err := url.Parse(req.URL)
	if err != nil {
		return errors.New("the URL does not parse")
	}
	w := &monitor{maxPack: req.MaxBytes, next: &route{net: s.Network, foreign: s.Foreign}}
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
	header, noAuth := req.Header, req.NoAuth
	for {
		var auth Auth
		var err error
		if header.Get("Authorization") == "" && !noAuth {
			if auth, err = s.Auth(ctx, target.String()); err != nil {
				return err
			}
		}
		next, err := s.hop(ctx, w, target, req, header, auth, read)
		if next == nil || err != nil {
			return s.fault(ctx, w, target, auth, err)
		}
		kept := http.Header{}
		for _, name := range []string{"Accept", "Content-Type", "Range"} {
			if values := req.Header.Values(name); len(values) > 0 {
				kept[name] = values
			}
		}
		target, header, noAuth = next, kept, false
	}
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
	res, err := w.next.RoundTrip(out)
	if err != nil {
		return nil, w.record(err)
	}
	defer res.Body.Close()
	w.answered(res.StatusCode, res.Header)
	switch {
	case isRedirect(res.StatusCode):
		return redirectTarget(w, res)
	case res.StatusCode >= 300:
		return nil, statusOrFault(w, res, auth.IsZero() && header.Get("Authorization") == "")
	}
	body := w.limit(ctx, cancel, res.Body, false)
	defer body.Close()
	body.prologue = nil
	res.Body = body
	if err := read(res); err != nil {
		return nil, &readError{err}
	}
	return nil, nil
}

// readError is an error of the function that reads a response.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

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
	read, isRead := errors.AsType[*readError](err)
	switch {
	case err == nil:
		return nil
	case isStatus:
		return status
	case isRead && fault == nil: // its own
		return read.err
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
