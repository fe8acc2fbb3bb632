package lock

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"lockstep/bench/rig"
	"lockstep/internal/stats"
)

// grant is a period during which a waiter held the lock, from the return of acquire to just before the release. Asked is the
// time of its first attempt.
type grant struct {
	Process, Waiter          int
	Asked, Granted, Released int64
}

// parseGrant reads a line of the worker protocol: <waiter> <asked> <granted> <released>.
func parseGrant(process int, line string) (grant, error) {
	n, err := rig.ParseNumbers(line)
	if err != nil {
		return grant{}, err
	}
	g := grant{Process: process, Waiter: int(n[0]), Asked: n[1], Granted: n[2], Released: n[3]}
	if g.Waiter < 0 || g.Asked > g.Granted || g.Granted > g.Released {
		return grant{}, fmt.Errorf("line %q: want a waiter, and three times in order", line)
	}
	return g, nil
}

// contention is a contest of the waiters of several processes.
type contention struct {
	Processes, Waiters int
	rig.Span
}

// HandOffs has the figures of one contest for one lock.
type HandOffs struct {
	Grants          int     `json:"grants"`
	GrantsPerSecond float64 `json:"grants_per_second"`

	// Busy is the share of time in which the lock was held: 1 if no time is lost between holders.
	Busy float64 `json:"busy"`

	// A hand-off lasts from just before a holder's release to the return of the next holder's acquire. Between counts
	// only those between processes.
	HandOff stats.Latency `json:"hand_off"`
	Between stats.Latency `json:"hand_off_between_processes"`

	LongestWait time.Duration `json:"longest_wait_ns"` // including waiters that were still waiting at the end
	PerProcess  stats.Spread  `json:"grants_per_process"`
	PerWaiter   stats.Spread  `json:"grants_per_waiter"`
	Overlaps    int           `json:"overlaps"` // grants made while another holder had not released
}

// summarize computes the figures from the grants of all processes, in any order. It ignores what happened outside the span.
func summarize(c contention, grants []grant) HandOffs {
	grants = slices.Clone(grants)
	slices.SortFunc(grants, func(a, b grant) int { return cmp.Compare(a.Granted, b.Granted) })
	var (
		f            HandOffs
		busy         int64
		all, between []time.Duration
		last         *grant // released last
		perProcess   = make([]int, c.Processes)
		perWaiter    = make([]int, c.Processes*c.Waiters)
		asking       = slices.Repeat([]int64{c.From}, len(perWaiter)) // start of each waiter's current wait
	)
	for i, g := range grants {
		waiter := g.Process*c.Waiters + g.Waiter
		if g.Asked < c.To && g.Granted >= c.From {
			f.LongestWait = max(f.LongestWait, time.Duration(min(g.Granted, c.To)-max(g.Asked, c.From)))
		}
		asking[waiter] = max(asking[waiter], g.Released)
		busy += max(0, min(g.Released, c.To)-max(g.Granted, c.From))
		if g.Granted >= c.From && g.Granted < c.To {
			f.Grants++
			perProcess[g.Process]++
			perWaiter[waiter]++
			switch {
			case last == nil:
			case g.Granted < last.Released:
				f.Overlaps++
			default:
				gap := time.Duration(g.Granted - last.Released)
				all = append(all, gap)
				if g.Process != last.Process {
					between = append(between, gap)
				}
			}
		}
		if last == nil || g.Released > last.Released {
			last = &grants[i]
		}
	}
	for _, since := range asking {
		f.LongestWait = max(f.LongestWait, time.Duration(c.To-since))
	}
	f.GrantsPerSecond = float64(f.Grants) / time.Duration(c.To-c.From).Seconds()
	f.Busy = float64(busy) / float64(c.To-c.From)
	f.HandOff, f.Between = stats.NewLatency(all), stats.NewLatency(between)
	f.PerProcess, f.PerWaiter = stats.NewSpread(perProcess), stats.NewSpread(perWaiter)
	return f
}

// medianHandOffs returns the round with the median number of grants, but the longest wait and the overlaps of all rounds.
func medianHandOffs(rounds []HandOffs) HandOffs {
	sorted := slices.SortedFunc(slices.Values(rounds), func(a, b HandOffs) int { return cmp.Compare(a.Grants, b.Grants) })
	m := sorted[(len(sorted)-1)/2]
	m.LongestWait, m.Overlaps = 0, 0
	for _, f := range rounds {
		m.LongestWait = max(m.LongestWait, f.LongestWait)
		m.Overlaps += f.Overlaps
	}
	return m
}
