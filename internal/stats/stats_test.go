package stats

import (
	"slices"
	"testing"
)

func TestPercentileIsTheNearestRank(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for name, tc := range map[string]struct {
		values []int
		p      float64
		want   int
	}{
		"of nothing":             {nil, 0.99, 0},
		"of one":                 {[]int{7}, 0.01, 7},
		"99th of a hundred":      {hundred, 0.99, 99},
		"median of a hundred":    {hundred, 0.5, 50},
		"the largest":            {hundred, 1, 100},
		"99th of few is largest": {[]int{1, 2, 3}, 0.99, 3},
	} {
		if got := Percentile(tc.values, tc.p); got != tc.want {
			t.Errorf("%s: got %d; want %d", name, got, tc.want)
		}
	}
	values := []int{9, 1, 5}
	if got := Median(values); got != 5 || !slices.Equal(values, []int{9, 1, 5}) {
		t.Errorf("median %d of %v; want 5, and the values as they were", got, values)
	}
}
