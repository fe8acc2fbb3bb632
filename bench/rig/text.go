package rig

import (
	"fmt"
	"time"

	"lockstep/internal/stats"
)

func Millis(d time.Duration) string {
	if d == 0 {
		return "–" // there was none
	}
	return fmt.Sprintf("%.3f", float64(d)/float64(time.Millisecond))
}

func SecondsRange(r stats.Range[time.Duration]) string {
	return fmt.Sprintf("%.3f (%.3f–%.3f)", r.Median.Seconds(), r.Lowest.Seconds(), r.Highest.Seconds())
}

func RatioRange(r stats.Range[float64]) string {
	return fmt.Sprintf("%.2f (%.2f–%.2f)", r.Median, r.Lowest, r.Highest)
}

func Ratio(r float64) string { return fmt.Sprintf("%.2f", r) }
