package publish

import (
	"slices"
	"time"

	"lockstep/internal/stats"
)

// The names of the contestants. Further contestants are other binaries and settings of Lockstep.
const (
	SideLockstep = "lockstep"
	SideReset    = "git reset --hard"
	SideWorktree = "git worktree add"
	SideClone    = "git clone --depth 1"
)

// Publication is the publication of one push or first clone by one contestant.
type Publication struct {
	Seen time.Duration `json:"seen_ns"` // from the push until readers see it
	CPU  time.Duration `json:"cpu_ns"`  // of the worker until it was idle again, or of git; without those of the server and Redis
}

// Turns are the turns of each contestant, by name. The nth turns of all contestants are consecutive.
type Turns map[string][]Publication

func (t Turns) each(name string, figure func(Publication) time.Duration) []time.Duration {
	durations := make([]time.Duration, len(t[name]))
	for i, p := range t[name] {
		durations[i] = figure(p)
	}
	return durations
}

func (t Turns) seen(name string) []time.Duration {
	return t.each(name, func(p Publication) time.Duration { return p.Seen })
}

func (t Turns) cpu(name string) []time.Duration {
	return t.each(name, func(p Publication) time.Duration { return p.CPU })
}

// percentiles computes the median and the 90th percentile of durations in any order.
func percentiles(durations []time.Duration) (p50, p90 time.Duration) {
	sorted := slices.Sorted(slices.Values(durations))
	return stats.Percentile(sorted, 0.5), stats.Percentile(sorted, 0.9)
}

// Ratios compare a contestant with others: each is the median of the turns' ratios, and 0 without that contestant.
type Ratios struct {
	ToReset            float64 `json:"to_reset,omitempty"`
	ToResetMinusFsyncs float64 `json:"to_reset_minus_two_fsyncs,omitempty"` // the time of the two fsyncs subtracted from the contestant's first
	ToWorktree         float64 `json:"to_worktree,omitempty"`
	ToLockstep         float64 `json:"to_lockstep,omitempty"`
	CloneToClone       float64 `json:"first_clone_to_git_clone,omitempty"`
}

// compare returns a contestant's ratios.
func (r Repo) compare(name string) Ratios {
	seen, reset := r.Pushes.seen(name), r.Pushes.seen(SideReset)
	return Ratios{
		ToReset:            stats.MedianRatio(seen, reset),
		ToResetMinusFsyncs: stats.MedianRatio(minus(seen, r.Fsyncs), reset),
		ToWorktree:         stats.MedianRatio(seen, r.Pushes.seen(SideWorktree)),
		ToLockstep:         stats.MedianRatio(seen, r.Pushes.seen(r.first)),
		CloneToClone:       stats.MedianRatio(r.Clones.seen(name), r.Clones.seen(SideClone)),
	}
}

// minus subtracts b from a, pair by pair, down to 0.
func minus(a, b []time.Duration) []time.Duration {
	difference := slices.Clone(a)
	for i := range difference {
		difference[i] = max(0, a[i]-b[i])
	}
	return difference
}
