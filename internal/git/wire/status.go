package wire

import (
	"fmt"
	"net/http"
	"time"

	"lockstep/internal/egress"
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
	limit := egress.ReadRateLimit(res.Header, now)
	switch res.StatusCode {
	case http.StatusTooManyRequests:
		e.limited = true
	case http.StatusForbidden, http.StatusServiceUnavailable:
		e.limited = res.Header.Get("Retry-After") != "" || limit.Remaining == 0
	}
	if e.limited {
		e.retryAfter = limit.Wait()
	}
	return e
}
