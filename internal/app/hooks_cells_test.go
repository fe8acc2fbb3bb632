package app

import (
	"testing"

	"lockstep/internal/intake"
)

// TestWatchOfAnyCellCounts combines outcomes of cells, one of which watches another ref of the repository.
func TestWatchOfAnyCellCounts(t *testing.T) {
	unwatched := intake.Outcome{Result: intake.Ignored, Unwatched: true}
	otherRef := intake.Outcome{Result: intake.Ignored}
	accepted := intake.Outcome{Result: intake.Accepted, Changes: 1}
	for name, tc := range map[string]struct {
		outcomes []intake.Outcome
		want     intake.Outcome
	}{
		"in none":      {[]intake.Outcome{unwatched, unwatched}, unwatched},
		"another ref":  {[]intake.Outcome{unwatched, otherRef}, otherRef},
		"in the other": {[]intake.Outcome{unwatched, accepted}, accepted},
	} {
		if got := combine(tc.outcomes); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}
