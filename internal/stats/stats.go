// Package stats computes medians, percentiles and ratios.
package stats

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Latency is the percentiles of durations. It is zero if there are none.
type Latency struct {
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
	Max time.Duration `json:"max_ns"`
}

// NewLatency computes the percentiles of durations, which it sorts.
func NewLatency(durations []time.Duration) Latency {
	slices.Sort(durations)
	return Latency{P50: Percentile(durations, 0.5), P99: Percentile(durations, 0.99), Max: Percentile(durations, 1)}
}

// Percentile returns the nearest-rank percentile of sorted values, without interpolation. It returns zero if
// there are none.
func Percentile[T cmp.Ordered](sorted []T, p float64) T {
	if len(sorted) == 0 {
		var none T
		return none
	}
	rank := int(math.Ceil(p*float64(len(sorted)))) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

// Median returns the middle value, or the lower of the two in the middle.
func Median[T cmp.Ordered](values []T) T {
	return Percentile(slices.Sorted(slices.Values(values)), 0.5)
}

// Spread is how evenly something was shared.
type Spread struct {
	Fewest int     `json:"fewest"`
	Most   int     `json:"most"`
	Ratio  float64 `json:"ratio"` // Fewest / Most; 1 if all are equal
}

// NewSpread compares counts.
func NewSpread(counts []int) Spread {
	if len(counts) == 0 || slices.Max(counts) == 0 {
		return Spread{Ratio: 1}
	}
	s := Spread{Fewest: slices.Min(counts), Most: slices.Max(counts)}
	s.Ratio = float64(s.Fewest) / float64(s.Most)
	return s
}

// MedianOf returns the median of a figure over rounds.
func MedianOf[R any, T cmp.Ordered](rounds []R, figure func(R) T) T {
	return Median(collect(rounds, figure))
}

// Range is the median and the extremes of a figure over rounds.
type Range[T cmp.Ordered] struct {
	Median  T `json:"median"`
	Lowest  T `json:"lowest"`
	Highest T `json:"highest"`
}

// RangeOf computes the range of a figure over rounds.
func RangeOf[R any, T cmp.Ordered](rounds []R, figure func(R) T) Range[T] {
	if len(rounds) == 0 {
		return Range[T]{}
	}
	values := collect(rounds, figure)
	return Range[T]{Median: Median(values), Lowest: slices.Min(values), Highest: slices.Max(values)}
}

// Ratio returns a/b, or 0 if b is 0.
func Ratio(a, b time.Duration) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// MedianRatio returns the median of of[i]/to[i], or 0 if of or to is empty.
func MedianRatio(of, to []time.Duration) float64 {
	ratios := make([]float64, min(len(of), len(to)))
	for i := range ratios {
		ratios[i] = float64(of[i]) / float64(to[i])
	}
	return Median(ratios)
}

func collect[R, T any](rounds []R, figure func(R) T) []T {
	values := make([]T, len(rounds))
	for i, r := range rounds {
		values[i] = figure(r)
	}
	return values
}
