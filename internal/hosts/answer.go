package hosts

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"lockstep/events"
	"lockstep/internal/egress"
)

// Answer is the outcome of a request.
type Answer struct {
	Status  int // 0 if there is none, as with SSH
	Header  http.Header
	Latency time.Duration // until the first byte of the response; 0 if unknown
	Err     error

	// More announces that the job may soon send another request for the same repository, as a fetch after ls-refs. After a
	// success the permit is then kept: the next Enter of the same repository returns it, and [Budgets.Leave] releases it, or
	// Run after a minute. Without it, the job would have to queue again behind all other repositories, and start over.
	More bool
}

// Outcome is what an answer says about the host.
type Outcome string

// The outcomes; package documentation has the table.
const (
	Succeeded  Outcome = "ok"
	Failed     Outcome = "failed"     // no answer
	Overloaded Outcome = "overloaded" // an answer, but late or a server error
	Refused    Outcome = "limited"    // the host wants fewer requests
	Ignored    Outcome = "none"
)

// result is a classified answer.
type result struct {
	outcome    Outcome
	latency    time.Duration // 0 if unknown
	retryAfter time.Duration // 0 if the host has not said
	remaining  int64         // -1 if unknown
	quota      int64
	reset      time.Duration // 0 if unknown
}

// quiet reports whether the answer asks for no slower pace.
func (r result) quiet() bool {
	return r.reset == 0 || r.remaining < 0 || r.remaining >= (r.quota+9)/10 && r.remaining > 0
}

func (a Answer) classify(now time.Time) result {
	said := egress.ReadRateLimit(a.Header, now)
	r := result{outcome: Succeeded, remaining: said.Remaining, quota: said.Limit, reset: said.Reset}
	delay := said.RetryAfter
	limited := events.ClassOf(a.Err) == events.ClassLimited
	if limited {
		delay = cmp.Or(delay, events.RetryAfter(a.Err))
	}
	switch {
	case limited, a.Status == http.StatusTooManyRequests,
		a.Status == http.StatusForbidden && (delay > 0 || r.remaining == 0),
		a.Status == http.StatusServiceUnavailable && delay > 0:
		r.outcome, r.retryAfter = Refused, delay
		if delay == 0 && r.remaining == 0 {
			r.retryAfter = r.reset
		}
	case a.Status == 0 && a.Err != nil:
		if r.outcome = Ignored; isNetworkFailure(a.Err) {
			r.outcome = Failed
		}
	case a.Status >= 500 || isTimeout(a.Err) || events.ClassOf(a.Err) == events.ClassNetwork:
		r.outcome = Overloaded
	case a.Status >= 400: // the host answers, and the error concerns the repository or the credential
	case a.Err != nil:
		r.outcome = Ignored
	default:
		r.latency = a.Latency
	}
	return r
}

func isTimeout(err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

// isNetworkFailure reports whether the host did not answer. Errors of this side, such as a cancelled job or a refused
// address, say nothing about the host.
func isNetworkFailure(err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	_, dial := errors.AsType[*net.OpError](err)
	_, dns := errors.AsType[*net.DNSError](err)
	return events.ClassOf(err) == events.ClassNetwork || dial || dns || isTimeout(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
