package operate

import (
	"testing"
	"time"
)

func TestStatesOfWorkers(t *testing.T) {
	for _, tc := range []struct {
		unheard, grace time.Duration
		want           string
	}{
		{14 * time.Second, 0, WorkerLive}, {16 * time.Second, 0, WorkerUnheard}, {99 * time.Second, 25 * time.Second, WorkerUnheard},
		{101 * time.Second, 25 * time.Second, WorkerMissing}, {101 * time.Second, time.Hour, WorkerUnheard},
	} {
		if got := (&Workers{Grace: tc.grace}).state(tc.unheard); got != tc.want {
			t.Errorf("unheard for %v with a grace of %v: %s, want %s", tc.unheard, tc.grace, got, tc.want)
		}
	}
	if n := Unheard([]Worker{{State: WorkerLive}, {State: WorkerUnheard}, {State: WorkerMissing}}); n != 1 {
		t.Errorf("%d not heard, want 1", n)
	}
}
