package publish

import (
	"cmp"
	"slices"
	"time"

	"lockstep/bench/rig"
	"lockstep/internal/stats"
)

// The names of the contestants beside the sides of [rig.Env.Sides].
const (
	SideReset    = "git reset --hard"
	SideWorktree = "git worktree add"
	SideGitSync  = "git-sync's steps"
	SideClone    = "git clone --depth 1"
	SideSynced   = "git clone --depth 1, syncfs"
)

// Publication is the publication of one push or first clone by one contestant.
type Publication struct {
	Seen time.Duration `json:"seen_ns"` // from the push until readers see it
	CPU  time.Duration `json:"cpu_ns"`  // of the worker until it was idle again, or of git; without those of the server and Redis
}

// Turns are the turns of each contestant, by name. The nth turns of all contestants are consecutive.
type Turns map[string][]Publication

// seen returns the durations of a contestant.
func (t Turns) seen(name string) []time.Duration {
	durations := make([]time.Duration, len(t[name]))
	for i, p := range t[name] {
		durations[i] = p.Seen
	}
	return durations
}

// cpu returns the CPU times of a contestant.
func (t Turns) cpu(name string) []time.Duration {
	durations := make([]time.Duration, len(t[name]))
	for i, p := range t[name] {
		durations[i] = p.CPU
	}
	return durations
}

// ratio returns the median of the ratios of Lockstep to a contestant, turn by turn.
func (t Turns) ratio(name string) float64 {
	return stats.MedianRatio(t.seen(rig.SideLockstep), t.seen(name))
}

// percentile returns a percentile of sorted values.
func percentile[T cmp.Ordered](sorted []T, p float64) T { return stats.Percentile(sorted, p) }

// percentiles computes the median and the 90th percentile of durations in any order.
func percentiles(durations []time.Duration) (p50, p90 time.Duration) {
	sorted := slices.Sorted(slices.Values(durations))
	return percentile(sorted, 0.5), percentile(sorted, 0.9)
}
