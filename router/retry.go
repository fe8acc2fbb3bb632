package router

import (
	"cmp"
	"math/rand/v2"
	"time"

	"lockstep/events"
)

// Retry configures the retries of failed messages. Zero fields have their defaults.
type Retry struct {
	MaxAttempts int           // default 8
	Base        time.Duration // delay before the second attempt; default 1 s
	Max         time.Duration // longest delay; default 5 min
	MaxAge      time.Duration // a message published longer ago is not retried; default 7 days
}

func (r Retry) withDefaults() Retry {
	r.MaxAttempts = cmp.Or(r.MaxAttempts, 8)
	r.Base, r.Max = cmp.Or(r.Base, time.Second), cmp.Or(r.Max, 5*time.Minute)
	r.MaxAge = cmp.Or(r.MaxAge, 7*24*time.Hour)
	return r
}

// tooOld reports whether a message is older than MaxAge now, according to its entry ID; both times are
// Redis'. If the ID has no plausible time, it compares the number of deliveries with the number of maximum
// delays that fit into MaxAge.
func (r Retry) tooOld(entry string, delivered int, now time.Time) bool {
	published := events.EntryTime(entry)
	if published.Year() < 2000 || published.After(now.Add(time.Hour)) {
		return time.Duration(delivered-1) > r.MaxAge/r.Max
	}
	return now.Sub(published) > r.MaxAge
}

// after returns the delay that err asks for, as those of handlers behind a backoff of their own do, or else
// that after the nth attempt.
func (r Retry) after(err error, n int) time.Duration {
	if wait := events.RetryAfter(err); wait > 0 {
		return wait
	}
	return r.Delay(n)
}

// Attempts returns the maximum number of attempts.
func (r Retry) Attempts() int { return r.withDefaults().MaxAttempts }

// Delay returns the delay after the nth attempt, n from 1: Base doubled each time, at most Max, with equal jitter (Marc
// Brooker, Exponential Backoff And Jitter, AWS Architecture Blog, 2015): at random between half and all of it.
func (r Retry) Delay(n int) time.Duration {
	r = r.withDefaults()
	d := r.Max
	if shift := max(n, 1) - 1; shift < 62 && r.Base <= r.Max>>shift { // the same as Base<<shift <= Max, which may overflow
		d = r.Base << shift
	}
	return d/2 + rand.N(d/2+1)
}
