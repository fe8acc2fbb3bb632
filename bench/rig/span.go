package rig

import "time"

// Span is a stretch of time.
type Span struct{ From, To int64 }

// Overlap is how much of s lies in o.
func (s Span) Overlap(o Span) time.Duration {
	return max(0, time.Duration(min(s.To, o.To)-max(s.From, o.From)))
}
