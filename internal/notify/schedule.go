package notify

import (
	"net/http"
	"time"

	"lockstep/internal/egress"
)

const jitter = 0.2 // maximum relative change of a delay, so that apps that fail together are not retried together

// defaultSchedule returns the delays before each attempt, about three days in total.
func defaultSchedule() []time.Duration {
	return []time.Duration{0, 5 * time.Second, 5 * time.Minute, 30 * time.Minute,
		2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour}
}

// nextDelay returns the delay after the given number of failed attempts, at least one, or false if no attempts are
// left. random is between 0 and 1. A positive retryAfter replaces the scheduled delay if it exceeds that delay's
// minimum.
func nextDelay(schedule []time.Duration, failed int, random float64, retryAfter time.Duration) (time.Duration, bool) {
	if failed >= len(schedule) {
		return 0, false
	}
	scheduled := float64(schedule[failed])
	if retryAfter > 0 {
		return max(retryAfter, time.Duration(scheduled*(1-jitter))), true
	}
	return time.Duration(scheduled * (1 - jitter + 2*jitter*random)), true
}

// retryAfter returns the Retry-After of a response with status 429 or 503, at most a day; else 0.
func retryAfter(status int, header http.Header, now time.Time) time.Duration {
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
		return 0
	}
	return egress.ReadRateLimit(header, now).RetryAfter
}
