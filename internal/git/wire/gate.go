package wire

import (
	"context"
	"errors"
	"net/http"
	"time"

	"lockstep/internal/git"
)

// Gate limits the requests to hosts. [Session.List] and [Session.Fetch] enter it before they send anything. It must be
// safe for concurrent use.
type Gate interface {
	// Enter returns a permit for one request to host, which is in lower case and without a default port. The operation can
	// continue without an optional request, for which there may be none: [ErrNoPermit]. Any other error is returned to the
	// caller of the session as it is, so it should be an [git.Error].
	Enter(ctx context.Context, host string, optional bool) (Permit, error)
}

// ErrNoPermit means that an optional request may not be sent now.
var ErrNoPermit = errors.New("no permit for an optional request")

// Permit is the permission for one request.
type Permit interface {
	// Done is called once, after the last byte or the error of the response, even if ctx is done. If it returns an error,
	// the session returns that error: the operation must stop.
	Done(ctx context.Context, a Answer) error
}

// Answer is how a host answered a request.
type Answer struct {
	Status  int           // of the last response; 0 for SSH, and if there was no response
	Header  http.Header   // of the last response; nil if Status is 0
	Latency time.Duration // until the first byte of the first response, including the time to connect; 0 if there was none
	Err     error         // classified; nil if the request succeeded
	More    bool          // another request of the same operation may follow
}

// do sends a request through the gate and within the timeout, and classifies its error. more is as in [Answer].
func (r *Session) do(ctx context.Context, more bool, send func(context.Context) error) error {
	if r.gate == nil {
		return r.send(ctx, send)
	}
	permit, err := r.gate.Enter(ctx, r.gateHost, false)
	if err != nil {
		return err
	}
	err = uncounted(r.send(ctx, send))
	answer := r.wire.latestAnswer()
	answer.Err, answer.More = err, more
	if stop := permit.Done(ctx, answer); stop != nil {
		return stop
	}
	return err
}

func (r *Session) send(ctx context.Context, send func(context.Context) error) (err error) {
	reqCtx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	defer func() { err = r.fault(ctx, reqCtx, err) }()
	defer recoverTo(&err)
	r.wire.begin()
	if err := send(reqCtx); err != nil {
		return err
	}
	return reqCtx.Err()
}

// uncounted makes the error of a limited request one that does not count as an attempt: the gate delays the next request,
// so that it cannot be repeated without end.
func uncounted(err error) error {
	if git.ClassOf(err) != git.ClassLimited {
		return err
	}
	return &git.Error{Retry: git.Contention, Class: git.ClassLimited, RetryAfter: git.RetryAfter(err), Err: err}
}
