package cells

import (
	"fmt"
	"math"
	"testing"
)

// TestPlacementIsPinned fails if placement changes: each repository of every deployment would be in another cell.
func TestPlacementIsPinned(t *testing.T) {
	t.Parallel()
	p := NewPlacement([]Share{{"eu-2", 100}, {"eu-1", 100}, {"us-1", 200}, {"spare", 0}})
	got := ""
	for i := range 24 {
		got += p.Of(fmt.Sprintf("acme/widgets-%d", i)) + " "
	}
	if got != wantCells {
		t.Errorf("got  %s\nwant %s", got, wantCells)
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

// TestHeavierCellGetsOnlyItsShare moves keys only to the cell whose weight grows.
func TestHeavierCellGetsOnlyItsShare(t *testing.T) {
	t.Parallel()
	const n = 100_000
	old := NewPlacement([]Share{{"a", 100}, {"b", 100}, {"c", 200}, {"d", 100}})
	next, moved := NewPlacement([]Share{{"d", 100}, {"c", 200}, {"b", 100}, {"a", 250}}), 0
	for i := range n {
		key := fmt.Sprintf("acme/%d", i)
		from, to := old.Of(key), next.Of(key)
		if from == to {
			continue
		}
		if moved++; to != "a" {
			t.Fatalf("%s moves from %s to %s", key, from, to)
		}
	}
	if share, want := float64(moved)/n, 250./650-100./500; math.Abs(share-want) > 0.01 {
		t.Errorf("%.3f move, want %.3f", share, want)
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

const wantCells = "us-1 eu-2 eu-2 us-1 us-1 eu-1 us-1 eu-2 us-1 us-1 us-1 us-1 us-1 eu-2 us-1 eu-1 us-1 eu-2 us-1 us-1 eu-1 eu-2 us-1 us-1 "
