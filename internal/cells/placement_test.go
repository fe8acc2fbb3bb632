package cells

import (
	"fmt"
	"math"
	"testing"
)

// TestPlacementIsPinned fails if placement changes: each repository of every deployment would be in another cell.
func TestPlacementIsPinned(t *testing.T) {
	t.Parallel()
	sum := uint64(0)
	for i, v := range logarithms {
		sum = sum*31 + v + uint64(i)
	}
	if want := uint64(wantSum); sum != want {
		t.Errorf("the table of logarithms has the sum %d, want %d", sum, want)
	}
	p := NewPlacement([]Share{{"eu-2", 100}, {"eu-1", 100}, {"us-1", 200}, {"spare", 0}})
	got := ""
	for i := range 24 {
		got += p.Of(fmt.Sprintf("acme/widgets-%d", i)) + " "
	}
	if got != wantCells {
		t.Errorf("got  %s\nwant %s", got, wantCells)
	}
}

func TestExponentialIsTheLogarithm(t *testing.T) {
	t.Parallel()
	h := uint64(1)
	for range 100_000 {
		h = mix(h + 0x9e3779b97f4a7c15)
		got, want := float64(exponential(h))/(1<<fraction), 64-math.Log2(float64(h|1))
		if math.Abs(got-want) > 1e-7 {
			t.Fatalf("exponential(%d) = %v, want %v", h, got, want)
		}
	}
	for _, h := range []uint64{0, 1, 1 << 63, math.MaxUint64} {
		if got, want := float64(exponential(h))/(1<<fraction), 64-math.Log2(float64(h|1)); math.Abs(got-want) > 1e-7 {
			t.Errorf("exponential(%d) = %v, want %v", h, got, want)
		}
	}
}

func TestPlacementDividesByWeight(t *testing.T) {
	t.Parallel()
	const n = 200_000
	shares := []Share{{"a", 100}, {"b", 100}, {"c", 50}, {"d", 250}, {"e", 1}, {"f", 499}}
	p := NewPlacement(shares)
	count := map[string]int{}
	for i := range n {
		count[p.Of(fmt.Sprintf("owner-%d/repo-%d", i%997, i))]++
	}
	for _, s := range shares {
		want := float64(n*s.Weight) / 1000
		if off := math.Abs(float64(count[s.Name]) - want); off > 4*math.Sqrt(want) { // standard deviations
			t.Errorf("cell %s of weight %d has %d, want %.0f", s.Name, s.Weight, count[s.Name], want)
		}
	}
}

// TestChangeOfWeightsMovesOnlyWhatItHasTo adds, drains and reweighs a cell: keys move only to the cell whose share grows, or away from
// that whose share shrinks.
func TestChangeOfWeightsMovesOnlyWhatItHasTo(t *testing.T) {
	t.Parallel()
	const n = 100_000
	base := []Share{{"a", 100}, {"b", 100}, {"c", 200}, {"d", 100}}
	old := NewPlacement(base)
	for name, tc := range map[string]struct {
		shares   []Share
		to, from string // the only cell to which keys move, or from which
		moved    float64
	}{
		"add":     {append([]Share{{"e", 125}}, base...), "e", "", 0.2},
		"drain":   {[]Share{{"d", 100}, {"c", 0}, {"b", 100}, {"a", 100}}, "", "c", 0.4},
		"heavier": {[]Share{{"a", 250}, {"b", 100}, {"c", 200}, {"d", 100}}, "a", "", 250./650 - 100./500},
	} {
		next, moved := NewPlacement(tc.shares), 0
		for i := range n {
			key := fmt.Sprintf("acme/%d", i)
			from, to := old.Of(key), next.Of(key)
			if from == to {
				continue
			}
			moved++
			if tc.to != "" && to != tc.to || tc.from != "" && from != tc.from {
				t.Fatalf("%s: %s moves from %s to %s", name, key, from, to)
			}
		}
		if share := float64(moved) / n; math.Abs(share-tc.moved) > 0.01 {
			t.Errorf("%s: %.3f move, want %.3f", name, share, tc.moved)
		}
	}
}

func TestPlacementWithoutCells(t *testing.T) {
	t.Parallel()
	for _, shares := range [][]Share{nil, {{"a", 0}}} {
		if got := NewPlacement(shares).Of("acme/widgets"); got != "" {
			t.Errorf("%v: got %q", shares, got)
		}
	}
}

const (
	wantSum   = 17112114073763759658
	wantCells = "us-1 eu-2 eu-2 us-1 us-1 eu-1 us-1 eu-2 us-1 us-1 us-1 us-1 us-1 eu-2 us-1 eu-1 us-1 eu-2 us-1 us-1 eu-1 eu-2 us-1 us-1 "
)
