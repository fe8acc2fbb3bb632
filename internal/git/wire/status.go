package wire

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"
)

// statusError is an HTTP status that is neither success nor a redirect.
type statusError struct {
	code       int
	limited    bool          // rate limited
	retryAfter time.Duration // requested by the server if limited; 0 for none
}

func (e statusError) Error() string { return fmt.Sprintf("HTTP status %d", e.code) }

// statusOf returns the error for a response. Some servers limit the request rate with status 403 or 503.
func statusOf(res *http.Response, now time.Time) statusError {
	e := statusError{code: res.StatusCode}
	switch res.StatusCode {
	case http.StatusTooManyRequests:
		e.limited = true
	case http.StatusForbidden, http.StatusServiceUnavailable:
		e.limited = res.Header.Get("Retry-After") != "" || res.Header.Get(rateRemaining) == "0"
	}
	if e.limited {
		e.retryAfter = retryAfter(res.Header, now)
	}
	return e
}

// Headers of GitHub, Gitea and others. GitLab omits the prefix, and limits with 429 and Retry-After.
const (
	rateRemaining = "X-RateLimit-Remaining"
	rateReset     = "X-RateLimit-Reset"
)

const maxRetryAfter = 24 * time.Hour

// retryAfter returns the delay until the server accepts requests again: Retry-After, in seconds or as a date, else
// X-RateLimit-Reset, in seconds since 1970, if nothing remains. It is 0 if the headers do not say. Times are relative to
// the server's clock if it sends a date.
func retryAfter(header http.Header, now time.Time) time.Duration {
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		now = date
	}
	text := header.Get("Retry-After")
	if seconds, ok := seconds(text); ok {
		return bounded(seconds)
	}
	if at, err := http.ParseTime(text); err == nil {
		return bounded(at.Sub(now).Seconds())
	}
	if reset, ok := seconds(header.Get(rateReset)); ok && header.Get(rateRemaining) == "0" {
		return bounded(reset - float64(now.UnixMilli())/1000)
	}
	return 0
}

// seconds parses a number of seconds, which some servers send with a fraction.
func seconds(text string) (n float64, ok bool) {
	n, err := strconv.ParseFloat(text, 64)
	return n, (err == nil || errors.Is(err, strconv.ErrRange)) && n >= 0 && !math.IsNaN(n)
}

func bounded(seconds float64) time.Duration {
	return time.Duration(min(max(seconds, 0), maxRetryAfter.Seconds()) * float64(time.Second))
}
