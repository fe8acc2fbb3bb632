package app

import (
	"testing"
	"time"
)

func TestEstimateOfMoves(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	l := leaving{}.next(map[string]int{"eu-2": 900, "eu-3": 100}, began)
	if got := l.to("eu-2"); got != (MovesLeft{Left: 900}) || got.String() != "900" {
		t.Errorf("at first: %+v, %q", got, got)
	}
	l = l.next(map[string]int{"eu-2": 720, "eu-3": 80}, began.Add(100*time.Second)) // 2 a second
	if got := l.to("eu-2"); got.Left != 720 || got.Seconds != 400 || got.String() != "720, 1.8/s, 6m40s left" {
		t.Errorf("after 100 s: %+v, %q", got, got)
	}
	if got := l.to("eu-4"); got.Left != 0 || got.String() != "" {
		t.Errorf("to another cell: %+v", got)
	}
	// The pace of the first minutes is forgotten.
	for i := range 40 {
		l = l.next(map[string]int{"eu-2": 700 - i}, began.Add(time.Duration(100+60*(i+1))*time.Second))
	}
	if pace := l.pace(); pace < 0.9/60 || pace > 1.1/60 || len(l.Past) > 2 {
		t.Errorf("%v a second of %+v, want one a minute", pace, l)
	}
	stalled := l
	for i := range 30 {
		stalled = stalled.next(l.Left, l.At.Add(time.Duration(i)*time.Minute))
	}
	if got := stalled.to("eu-2"); got.PerSecond != 0 || got.Seconds != 0 {
		t.Errorf("while nothing is moved: %+v", got)
	}
	if l = l.next(map[string]int{"eu-2": 5000}, l.At.Add(time.Minute)); l.pace() != 0 {
		t.Errorf("after a change of weights: %+v", l)
	}
}
