package lock

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/internal/stats"
)

// Grant is one time that a waiter held the lock: from the return of its acquire to the moment just
// before its release. It asked when it first tried, however often it then had to try again.
type Grant struct {
	Process, Waiter          int
	Asked, Granted, Released int64
}

// ParseGrant reads a line of the worker protocol: <waiter> <asked> <granted> <released>.
func ParseGrant(process int, line string) (Grant, error) {
	fields := strings.Fields(line)
	if len(fields) != 4 {
		return Grant{}, fmt.Errorf("grant %q has %d fields; want 4", line, len(fields))
	}
	var n [4]int64
	for i, f := range fields {
		var err error
		if n[i], err = strconv.ParseInt(f, 10, 64); err != nil {
			return Grant{}, fmt.Errorf("grant %q: %w", line, err)
		}
	}
	g := Grant{Process: process, Waiter: int(n[0]), Asked: n[1], Granted: n[2], Released: n[3]}
	if g.Waiter < 0 || g.Asked > g.Granted || g.Granted > g.Released {
		return Grant{}, fmt.Errorf("grant %q: want a waiter, and three moments in order", line)
	}
	return g, nil
}

// Contention is what was contended for: so many waiters in each of so many processes, all of them
// running from From to To.
type Contention struct {
	Processes, Waiters int
	From, To           int64
}

// HandOffs are the figures of one contest for one lock.
type HandOffs struct {
	Grants          int     `json:"grants"`
	GrantsPerSecond float64 `json:"grants_per_second"`

	// Busy is the share of the time in which the lock was held. Back-to-back holding, without any
	// time lost between one holder and the next, is 1.
	Busy float64 `json:"busy"`

	// A hand-off lasts from just before one holder's release to the return of the next one's
	// acquire. Between counts only those whose two holders were in different processes.
	HandOff stats.Latency `json:"hand_off"`
	Between stats.Latency `json:"hand_off_between_processes"`

	LongestWait time.Duration `json:"longest_wait_ns"` // also of who was still waiting at the end
	PerProcess  stats.Spread  `json:"grants_per_process"`
	PerWaiter   stats.Spread  `json:"grants_per_waiter"`
	Overlaps    int           `json:"overlaps"` // grants made while another holder had not released
}

// Summarize computes the figures from the grants of all processes, in any order. What happened
// outside of the contention's time is left out.
func Summarize(c Contention, grants []Grant) HandOffs {
	grants = slices.Clone(grants)
	slices.SortFunc(grants, func(a, b Grant) int { return cmp.Compare(a.Granted, b.Granted) })
	var (
		f            HandOffs
		busy         int64
		all, between []time.Duration
		last         *Grant // the one that was released last
		perProcess   = make([]int, c.Processes)
		perWaiter    = make([]int, c.Processes*c.Waiters)
		asking       = slices.Repeat([]int64{c.From}, len(perWaiter)) // since when
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

// MedianHandOffs is the median of each figure over the rounds, but the longest of the longest waits
// and the sum of the overlaps.
func MedianHandOffs(rounds []HandOffs) HandOffs {
	if len(rounds) == 0 {
		return HandOffs{}
	}
	latency := func(of func(HandOffs) stats.Latency) stats.Latency {
		return stats.Latency{
			P50: stats.MedianOf(rounds, func(f HandOffs) time.Duration { return of(f).P50 }),
			P99: stats.MedianOf(rounds, func(f HandOffs) time.Duration { return of(f).P99 }),
			Max: stats.MedianOf(rounds, func(f HandOffs) time.Duration { return of(f).Max }),
		}
	}
	spread := func(of func(HandOffs) stats.Spread) stats.Spread {
		return stats.Spread{
			Fewest: stats.MedianOf(rounds, func(f HandOffs) int { return of(f).Fewest }),
			Most:   stats.MedianOf(rounds, func(f HandOffs) int { return of(f).Most }),
			Ratio:  stats.MedianOf(rounds, func(f HandOffs) float64 { return of(f).Ratio }),
		}
	}
	m := HandOffs{
		Grants:          stats.MedianOf(rounds, func(f HandOffs) int { return f.Grants }),
		GrantsPerSecond: stats.MedianOf(rounds, func(f HandOffs) float64 { return f.GrantsPerSecond }),
		Busy:            stats.MedianOf(rounds, func(f HandOffs) float64 { return f.Busy }),
		HandOff:         latency(func(f HandOffs) stats.Latency { return f.HandOff }),
		Between:         latency(func(f HandOffs) stats.Latency { return f.Between }),
		PerProcess:      spread(func(f HandOffs) stats.Spread { return f.PerProcess }),
		PerWaiter:       spread(func(f HandOffs) stats.Spread { return f.PerWaiter }),
	}
	for _, f := range rounds {
		m.LongestWait = max(m.LongestWait, f.LongestWait)
		m.Overlaps += f.Overlaps
	}
	return m
}
