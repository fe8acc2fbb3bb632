package publish

import (
	"maps"
	"testing"
	"time"

	"lockstep/internal/stats"
)

func TestSplitPhases(t *testing.T) {
	for name, tc := range map[string]struct {
		marks []mark
		want  map[string]time.Duration
	}{
		"all": {
			[]mark{{"fenced", 1}, {"listed", 3}, {"fetched", 7}, {"moved", 8}, {"checked out", 13}, {"indexed", 15}, {"built", 18},
				{"confirmed", 19}, {"flipped", 20}, {returned, 26}},
			map[string]time.Duration{PhaseList: 3, PhaseFetch: 4, PhaseMove: 1, PhaseBuild: 5, PhaseIndex: 2, PhaseDisk: 3, PhaseFlip: 2, PhaseAfter: 6},
		},
		"no mark for the index": {
			[]mark{{"moved", 2}, {"built", 9}, {"flipped", 10}},
			map[string]time.Duration{PhaseMove: 2, PhaseBuild: 7, PhaseFlip: 1},
		},
		"the index comes after the flip": {
			[]mark{{"moved", 2}, {"checked out", 5}, {"built", 9}, {"flipped", 10}, {"indexed", 14}},
			map[string]time.Duration{PhaseMove: 2, PhaseBuild: 3, PhaseDisk: 4, PhaseFlip: 1, PhaseIndex: 4},
		},
		"built twice": {
			[]mark{{"moved", 2}, {"checked out", 5}, {"moved", 7}, {"checked out", 11}},
			map[string]time.Duration{PhaseMove: 4, PhaseBuild: 7},
		},
	} {
		if got := splitPhases(tc.marks); !maps.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}

func TestPublishStepExcludesTheIndex(t *testing.T) {
	p := Publication{Phases: splitPhases([]mark{{"moved", 2}, {"checked out", 5}, {"indexed", 105}, {"built", 109}, {"flipped", 110}, {returned, 200}})}
	if got := p.publishStep(); got != 8 {
		t.Errorf("got %d, want 8", got)
	}
}

func TestRatiosArePairedTurnByTurn(t *testing.T) {
	fast, slow := []time.Duration{10, 1, 30}, []time.Duration{20, 4, 40}
	if got := stats.MedianRatio(fast, slow); got != 0.5 {
		t.Errorf("got %v, want the median of 0.5, 0.25 and 0.75", got)
	}
	if got := stats.MedianRatio(nil, slow); got != 0 {
		t.Errorf("of nothing: got %v, want 0", got)
	}
	if got := newCourse([]time.Duration{9, 1, 5, 3, 10, 2, 8, 4, 6, 7}); got != (course{P50: 5, P90: 9}) {
		t.Errorf("got %v, want 5 and 9", got)
	}
}
