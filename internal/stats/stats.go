// Package stats summarizes measurements of benchmarks and demos.
package stats

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Latency holds percentiles of durations. It is zero if there are none.
type Latency struct {
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
	Max time.Duration `json:"max_ns"`
}

// NewLatency sorts durations and returns their percentiles.
func NewLatency(durations []time.Duration) Latency {
	slices.Sort(durations)
	return Latency{P50: Percentile(durations, 0.5), P99: Percentile(durations, 0.99), Max: Percentile(durations, 1)}
}

// Percentile returns the p-quantile (0 to 1) of sorted values by nearest rank, without interpolation. It returns zero
// if there are no values.
func Percentile[T cmp.Ordered](sorted []T, p float64) T {
	if len(sorted) == 0 {
		var none T
		return none
	}
	rank := int(math.Ceil(p*float64(len(sorted)))) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

// Median returns the middle value, or the lower of the two middle values.
func Median[T cmp.Ordered](values []T) T {
	return Percentile(slices.Sorted(slices.Values(values)), 0.5)
}

// Spread describes how evenly work was distributed.
type Spread struct {
	Fewest int     `json:"fewest"`
	Most   int     `json:"most"`
	Ratio  float64 `json:"ratio"` // Fewest / Most; 1 if all are equal
}

// NewSpread returns the spread of counts.
func NewSpread(counts []int) Spread {
	if len(counts) == 0 || slices.Max(counts) == 0 {
		return Spread{Ratio: 1}
	}
	s := Spread{Fewest: slices.Min(counts), Most: slices.Max(counts)}
	s.Ratio = float64(s.Fewest) / float64(s.Most)
	return s
}

// MedianOf returns the median of one figure over several rounds.
func MedianOf[R any, T cmp.Ordered](rounds []R, figure func(R) T) T {
	return RangeOf(rounds, figure).Median
}

// Range is the range of one figure over several rounds.
type Range[T cmp.Ordered] struct {
	Median  T `json:"median"`
	Lowest  T `json:"lowest"`
	Highest T `json:"highest"`
}

// RangeOf returns the range of one figure over several rounds.
func RangeOf[R any, T cmp.Ordered](rounds []R, figure func(R) T) Range[T] {
	if len(rounds) == 0 {
		return Range[T]{}
	}
	values := make([]T, len(rounds))
	for i, r := range rounds {
		values[i] = figure(r)
	}
	return Range[T]{Median: Median(values), Lowest: slices.Min(values), Highest: slices.Max(values)}
}

// Ratio returns a / b, or 0 if b is 0.
func Ratio(a, b time.Duration) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// MedianRatio returns the median of of[i] / to[i], where both were measured in the same round. It returns zero if
// there are none.
func MedianRatio(of, to []time.Duration) float64 {
	ratios := make([]float64, min(len(of), len(to)))
	for i := range ratios {
		ratios[i] = float64(of[i]) / float64(to[i])
	}
	return Median(ratios)
}
