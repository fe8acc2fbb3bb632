package term

import (
	"fmt"
	"time"
)

// Relative formats a time in its largest unit, as "3m ago" or "in 3m". The zero time is "never".
func Relative(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	d := now.Sub(t)
	if d < 0 {
		return "in " + rounded(-d)
	}
	return rounded(d) + " ago"
}

// rounded formats a duration in one unit, of which there are at least two, except for seconds.
func rounded(d time.Duration) string {
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if d >= 2*unit.length {
			return fmt.Sprintf("%d%s", d/unit.length, unit.name)
		}
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// Absolute formats a time to the second, in UTC. The zero time is "never".
func Absolute(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

// When formats a time for a page about one thing: in full, and how long ago. The zero time is "never".
func When(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return Absolute(t) + " (" + Relative(t, time.Now()) + ")"
}
