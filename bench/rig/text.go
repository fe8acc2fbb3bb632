package rig

import (
	"fmt"
	"time"

	"lockstep/internal/stats"
)

// Millis formats a duration in milliseconds, or as a dash if it is 0, which means no measurement.
func Millis(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return fmt.Sprintf("%.3f", float64(d)/float64(time.Millisecond))
}

// SecondsRange formats a median and its range in seconds.
func SecondsRange(r stats.Range[time.Duration]) string {
	return fmt.Sprintf("%.3f (%.3f–%.3f)", r.Median.Seconds(), r.Lowest.Seconds(), r.Highest.Seconds())
}

// RatioRange formats a median ratio and its range.
func RatioRange(r stats.Range[float64]) string {
	return fmt.Sprintf("%.2f (%.2f–%.2f)", r.Median, r.Lowest, r.Highest)
}
