package router

import (
	"math/rand/v2"
	"time"
)

// Retry says when a message that failed is worked on again.
type Retry struct {
	MaxAttempts int           // default 8; after that many the message is given up
	Base        time.Duration // default 1 s; delay before the second attempt
	Max         time.Duration // default 5 min; the longest delay
	MaxAge      time.Duration // default 7 days; a message published longer ago is given up rather than tried again
}

func (r Retry) withDefaults() Retry {
	if r.MaxAttempts == 0 {
		r.MaxAttempts = 8
	}
	if r.Base == 0 {
		r.Base = time.Second
	}
	if r.Max == 0 {
		r.Max = 5 * time.Minute
	}
	if r.MaxAge == 0 {
		r.MaxAge = 7 * 24 * time.Hour
	}
	return r
}

// tooOld goes by the moment in a stream entry's id, which is by Redis' clock. Of an id that somebody made up, of long ago
// or of the future, it goes by how often the message has been delivered: the longest delays fit into MaxAge so often.
func (r Retry) tooOld(entry string, delivered int) bool {
	published := queuedAt(entry)
	if published.IsZero() {
		return time.Duration(delivered-1) > r.MaxAge/r.Max
	}
	return time.Since(published) > r.MaxAge
}

// delay is how long to wait after the n-th try, n from 1: Base doubled with each, at most Max, of
// which a random half to whole, so that messages that failed together do not come back together
// ("equal jitter" in Marc Brooker, Exponential Backoff And Jitter, AWS Architecture Blog, 2015).
func (r Retry) delay(n int) time.Duration {
	d := r.Max
	if shift := max(n, 1) - 1; shift < 62 && r.Base <= r.Max>>shift { // the same as Base<<shift <= Max, which may overflow
		d = r.Base << shift
	}
	return d/2 + rand.N(d/2+1)
}
