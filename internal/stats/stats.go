package stats

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Latency is how durations are distributed. It is zero when there were none.
type Latency struct {
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
	Max time.Duration `json:"max_ns"`
}

// NewLatency sorts durations and reads the percentiles off.
func NewLatency(durations []time.Duration) Latency {
	slices.Sort(durations)
	return Latency{P50: Percentile(durations, 0.5), P99: Percentile(durations, 0.99), Max: Percentile(durations, 1)}
}

// Percentile is the smallest value that a share p of the sorted values does not exceed: the nearest
// rank, never an interpolation. It is zero when there are no values.
func Percentile[T cmp.Ordered](sorted []T, p float64) T {
	if len(sorted) == 0 {
		var none T
		return none
	}
	rank := int(math.Ceil(p*float64(len(sorted)))) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

// Median is the middle value, or the lower of the two in the middle.
func Median[T cmp.Ordered](values []T) T {
	return Percentile(slices.Sorted(slices.Values(values)), 0.5)
}

// Spread is how evenly something was shared out.
type Spread struct {
	Fewest int     `json:"fewest"`
	Most   int     `json:"most"`
	Ratio  float64 `json:"ratio"` // fewest / most; 1 when all had the same
}

// NewSpread compares the counts.
func NewSpread(counts []int) Spread {
	if len(counts) == 0 || slices.Max(counts) == 0 {
		return Spread{Ratio: 1}
	}
	s := Spread{Fewest: slices.Min(counts), Most: slices.Max(counts)}
	s.Ratio = float64(s.Fewest) / float64(s.Most)
	return s
}

// MedianOf is the median of one figure over rounds.
func MedianOf[R any, T cmp.Ordered](rounds []R, figure func(R) T) T {
	values := make([]T, len(rounds))
	for i, r := range rounds {
		values[i] = figure(r)
	}
	return Median(values)
}

// Range is how one figure came out over several rounds.
type Range[T cmp.Ordered] struct {
	Median  T `json:"median"`
	Lowest  T `json:"lowest"`
	Highest T `json:"highest"`
}

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

// Ratio is a to b, and 0 when there is no b: then nothing was settled, and that is said elsewhere.
func Ratio(a, b time.Duration) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// MedianRatio is the median of the ratios of two contestants' durations, turn by turn: of one turn both
// met the same machine. It is zero when there were none.
func MedianRatio(of, to []time.Duration) float64 {
	ratios := make([]float64, min(len(of), len(to)))
	for i := range ratios {
		ratios[i] = float64(of[i]) / float64(to[i])
	}
	return Median(ratios)
}
