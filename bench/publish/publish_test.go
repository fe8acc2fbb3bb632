package publish

import (
	"testing"
	"time"
)

func TestRatiosArePairedTurnByTurn(t *testing.T) {
	turns := func(seen ...time.Duration) (all []Publication) {
		for _, d := range seen {
			all = append(all, Publication{Seen: d})
		}
		return all
	}
	repo := Repo{
		first:  SideLockstep,
		Pushes: Turns{SideLockstep: turns(10, 1, 30), "old": turns(20, 4, 30), SideReset: turns(20, 4, 40)},
		Clones: Turns{SideLockstep: turns(3), SideClone: turns(2)},
		Fsyncs: []time.Duration{8, 2, 26},
	}
	// Minus two fsyncs: 2/20, 0/4 and 4/40.
	if got, want := repo.compare(SideLockstep), (Ratios{ToReset: 0.5, ToResetMinusFsyncs: 0.1, ToLockstep: 1, CloneToClone: 1.5}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := repo.compare("old").ToLockstep; got != 2 {
		t.Errorf("the other binary to the first: got %v, want 2", got)
	}
	if p50, p90 := percentiles([]time.Duration{9, 1, 5, 3, 10, 2, 8, 4, 6, 7}); p50 != 5 || p90 != 9 {
		t.Errorf("got %v and %v, want 5 and 9", p50, p90)
	}
}
