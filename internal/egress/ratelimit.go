package egress

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// RateLimit has the rate limit of a host, from the header of a response.
type RateLimit struct {
	RetryAfter time.Duration // until the host accepts requests again; 0 if it does not say
	Remaining  int64         // requests left until Reset; -1 if unknown
	Limit      int64         // requests until Reset; 0 if unknown
	Reset      time.Duration // until the limit is reset; 0 if unknown
}

const (
	maxWait    = 24 * time.Hour
	deltaBelow = 1_000_000_000 // a reset below this is a number of seconds from now instead of a time
)

// ReadRateLimit reads Retry-After, in seconds, with a fraction or as a date; and X-RateLimit-Remaining,
// -Limit and -Reset, as GitHub and Gitea send them, or the same without X-, as GitLab does. Durations are at
// most 24 h. Times are relative to the server's clock if it sends a date, else to now.
func ReadRateLimit(h http.Header, now time.Time) RateLimit {
	if sent, err := http.ParseTime(h.Get("Date")); err == nil {
		now = sent
	}
	r := RateLimit{RetryAfter: retryAfter(h.Get("Retry-After"), now), Remaining: -1}
	get := func(name string) (int64, bool) {
		value := h.Get("X-Ratelimit-" + name)
		if value == "" {
			value = h.Get("Ratelimit-" + name)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		return n, err == nil && n >= 0
	}
	if n, ok := get("Remaining"); ok {
		r.Remaining = n
	}
	if n, ok := get("Limit"); ok {
		r.Limit = n
	}
	if n, ok := get("Reset"); ok {
		if n >= deltaBelow {
			n -= now.Unix()
		}
		r.Reset = wait(float64(n))
	}
	return r
}

// Wait returns the time until the host accepts requests again, which is that of the reset if nothing remains
// and the host does not say more. It returns 0 if the time is unknown.
func (r RateLimit) Wait() time.Duration {
	if r.RetryAfter == 0 && r.Remaining == 0 {
		return r.Reset
	}
	return r.RetryAfter
}

// retryAfter returns 0 if the value is invalid or not in the future. Numbers with an exponent are invalid.
func retryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if value != "" && strings.Trim(value, "0123456789.") == "" {
		n, err := strconv.ParseFloat(value, 64)
		if err == nil || math.IsInf(n, 1) {
			return wait(n)
		}
		return 0
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return wait(math.Ceil(at.Sub(now).Seconds()))
}

// wait returns a number of seconds, from 0 to 24 h.
func wait(seconds float64) time.Duration {
	return time.Duration(min(max(seconds, 0), maxWait.Seconds()) * float64(time.Second))
}
