package stream

import (
	"sync/atomic"
	"time"
)

// clock estimates Redis' clock from its latest reply. The estimate is behind by at most the time that the reply took.
type clock struct{ ahead atomic.Pointer[time.Duration] } // of the local clock; nil until the first reply

// set records a time, in ms, that a reply just received contains.
func (c *clock) set(ms int64) {
	ahead := time.Until(time.UnixMilli(ms))
	c.ahead.Store(&ahead)
}

// now returns the current time by Redis' clock, or by the local one before the first reply.
func (c *clock) now() time.Time {
	if ahead := c.ahead.Load(); ahead != nil {
		return time.Now().Add(*ahead)
	}
	return time.Now()
}

// deadline returns the time after d, in ms of Redis' clock, or 0 before the first reply.
func (c *clock) deadline(d time.Duration) int64 {
	if c.ahead.Load() == nil {
		return 0
	}
	return c.now().Add(d).UnixMilli()
}
