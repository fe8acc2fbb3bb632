package rig

import (
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic reads the clock that all processes of this machine share, in nanoseconds.
func Monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // available on every Linux
	}
	return t.Nano()
}

// Span is the time between two values of Monotonic.
type Span struct{ From, To int64 }

// Overlap returns how much of s lies in o.
func (s Span) Overlap(o Span) time.Duration {
	return max(0, time.Duration(min(s.To, o.To)-max(s.From, o.From)))
}
