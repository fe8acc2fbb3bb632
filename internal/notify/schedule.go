package notify

import (
	"errors"
	"net/http"
	"strconv"
	"time"
)

// jitter is by how much a delay may be shorter or longer than the schedule says, so that apps which failed
// together are not tried together.
const jitter = 0.2

// latest is the longest delay that an app may ask for.
const latest = 24 * time.Hour

// DefaultSchedule is the delay before each attempt, about three days in all.
func DefaultSchedule() []time.Duration {
	return []time.Duration{0, 5 * time.Second, 5 * time.Minute, 30 * time.Minute,
		2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour}
}

// again is the delay after so many failed attempts, at least one; false when there is to be no other. share is
// a random number from 0 to 1. asked is how long the app wants to be left alone, 0 unless it says so; its
// word goes, up to a day, but for less than the schedule's least.
func again(schedule []time.Duration, failed int, share float64, asked time.Duration) (time.Duration, bool) {
	if failed >= len(schedule) {
		return 0, false
	}
	usual := float64(schedule[failed])
	if asked > 0 {
		return max(min(asked, latest), time.Duration(usual*(1-jitter))), true
	}
	return time.Duration(usual * (1 - jitter + 2*jitter*share)), true
}

// retryAfter is how long a response asks to be left alone: of 429 and 503 alone, in seconds or by a date.
func retryAfter(status int, header http.Header, now time.Time) time.Duration {
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
		return 0
	}
	text := header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(seconds, uint64(latest/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
