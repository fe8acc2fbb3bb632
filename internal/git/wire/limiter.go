package wire

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"lockstep/internal/git"
)

// Limiter limits the requests to hosts. [Session.List], [Session.Fetch] and [Sender.Send] ask it before they
// send anything. It must be safe for concurrent use.
type Limiter interface {
	// Acquire waits until a request may be sent to host, which is in lower case and without a default port.
	// Its error is returned to the caller of the session as it is, so it should be a [git.Error]. done is
	// called once, after the last byte or the error of the response, even if ctx is done. It reports whether
	// to acquire again and repeat the request, which the host has limited.
	Acquire(ctx context.Context, host string) (done func(Answer) (again bool), err error)
}

// Answer is how a host answered a request.
type Answer struct {
	Status      int           // of the last response; 0 for SSH, and if there was no response
	Header      http.Header   // of the last response; nil if Status is 0
	Latency     time.Duration // until the first byte of the first response; 0 if there was none
	Err         error         // classified; nil if the request succeeded
	Unreachable bool          // no connection to the host could be made
}

// limited sends a request through the limiter, and again if that says so.
func (l Limits) limited(ctx context.Context, host string, w *monitor, send func() error) error {
	if l.Limiter == nil {
		return send()
	}
	for {
		done, err := l.Limiter.Acquire(ctx, host)
		if err != nil {
			return err
		}
		err = send()
		answer := w.latestAnswer()
		err = uncounted(err, answer.Status)
		answer.Err, answer.Unreachable = err, answer.Status == 0 && noConnection(w.firstError())
		if !done(answer) {
			return err
		}
	}
}

func noConnection(err error) bool {
	dial, isOp := errors.AsType[*net.OpError](err)
	_, isDNS := errors.AsType[*net.DNSError](err)
	return isDNS || isOp && dial.Op == "dial"
}

// uncounted makes the error of a limited request one that does not count as an attempt: the limiter delays
// the next request, so that it cannot be repeated without end. It knows how long, and operators may lift a
// limit of the host; a status of 503 may be that of the repository alone.
func uncounted(err error, status int) error {
	if git.ClassOf(err) != git.ClassBusy {
		return err
	}
	after := git.RetryAfter(err)
	if status != http.StatusServiceUnavailable {
		after = min(after, time.Minute+rand.N(time.Minute/2))
	}
	return &git.Error{Retry: git.Contention, Class: git.ClassBusy, RetryAfter: after, Err: err}
}
