package hosts

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lockstep/events"
)

// Answer is what became of a request.
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

const (
	maxBlock   = 24 * time.Hour
	deltaBelow = 1_000_000_000 // a reset below this is a number of seconds from now instead of a time
)

// result is a classified answer.
type result struct {
	outcome    Outcome
	latency    time.Duration // 0 if it says nothing
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
	if sent, err := http.ParseTime(a.Header.Get("Date")); err == nil {
		now = sent // so that a wrong local clock does not matter
	}
	r := result{outcome: Succeeded, remaining: -1}
	r.readQuota(a.Header, now)
	delay := retryAfter(a.Header.Get("Retry-After"), now)
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

// readQuota reads X-RateLimit-*, and the same headers without X-.
func (r *result) readQuota(h http.Header, now time.Time) {
	get := func(name string) (int64, bool) {
		value := h.Get("X-Ratelimit-" + name)
		if value == "" {
			value = h.Get("Ratelimit-" + name)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		return n, err == nil && n >= 0
	}
	if n, ok := get("Remaining"); ok {
		r.remaining = n
	}
	if n, ok := get("Limit"); ok {
		r.quota = n
	}
	if n, ok := get("Reset"); ok {
		if n >= deltaBelow {
			n -= now.Unix()
		}
		r.reset = seconds(n)
	}
}

// retryAfter parses the header's number of seconds or HTTP date. It returns 0 if there is none in the future.
func retryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	n, err := strconv.ParseInt(value, 10, 64)
	if err == nil {
		return seconds(n)
	}
	if errors.Is(err, strconv.ErrRange) && !strings.HasPrefix(value, "-") {
		return maxBlock
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return seconds(int64(math.Ceil(at.Sub(now).Seconds())))
}

// seconds returns n seconds, from 0 to 24 h.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), int64(maxBlock/time.Second))) * time.Second
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
