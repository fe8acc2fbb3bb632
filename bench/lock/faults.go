package lock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"lockstep/bench/rig"
)

// GapSlack is how much longer than a lease a key may go without a new holder, whatever happens to
// holders, waiters and messages.
const GapSlack = time.Second

// Write is one attempt to write to the volume that a lock protects, at the begin or the end of a
// grant: accepted, or refused because a higher fence had written before.
type Write struct {
	At             int64
	Fence          uint64
	End, Refused   bool
	PID, Goroutine int
}

// WriteSize is the length of a write in the log, in bytes. It divides every page, so that a process
// killed while it appends leaves a whole line or none.
const WriteSize = 64

// Line is the write as the log has it: <at> <fence> begin|end accepted|refused <pid> <goroutine>,
// padded with spaces to WriteSize, with its newline.
func (w Write) Line() string {
	what, outcome := "begin", "accepted"
	if w.End {
		what = "end"
	}
	if w.Refused {
		outcome = "refused"
	}
	line := fmt.Sprintf("%d %d %s %s %d %d", w.At, w.Fence, what, outcome, w.PID, w.Goroutine)
	return fmt.Sprintf("%-*s\n", WriteSize-1, line)
}

// ParseWrite reads a line of the log.
func ParseWrite(line string) (Write, error) {
	var w Write
	var what, outcome, rest string
	n, _ := fmt.Sscan(line, &w.At, &w.Fence, &what, &outcome, &w.PID, &w.Goroutine, &rest)
	w.End, w.Refused = what == "end", outcome == "refused"
	if n != 6 || !w.End && what != "begin" || !w.Refused && outcome != "accepted" {
		return Write{}, fmt.Errorf("write %q: want a moment, a fence, begin or end, accepted or refused, a pid and a goroutine",
			strings.TrimSpace(line))
	}
	return w, nil
}

// FaultRun is what happened to one key, and to the Redis its lock is in, while faults were injected.
type FaultRun struct {
	rig.Span
	Lease time.Duration
	Log   []Write    // in the order of the log
	Down  []rig.Span // when Redis did not serve; no two at once
}

// FaultFigures are what a run with faults showed.
type FaultFigures struct {
	Grants          int     `json:"grants"` // that began, refused ones included
	GrantsPerSecond float64 `json:"grants_per_second"`
	Takeovers       int     `json:"takeovers"` // accepted begins after a holder that had not ended
	Refused         int     `json:"refused_stale_writes"`

	// None of these may be.
	Inversions int `json:"accepted_fence_inversions"` // accepted writes below an accepted fence
	TwoOwners  int `json:"fences_with_two_owners"`    // refused or not
	BegunTwice int `json:"fences_begun_twice"`        // refused or not

	// The longest time without an accepted begin, the start and the end of the run counting as one
	// each: with the time for which Redis was down, and without, which may be MayGap at most.
	LongestGap   time.Duration `json:"longest_gap_ns"`
	LongestGapUp time.Duration `json:"longest_gap_redis_up_ns"`
	GapUpAt      time.Duration `json:"longest_gap_redis_up_at_ns"` // since the start of the run
	MayGap       time.Duration `json:"gap_limit_ns"`
	Down         time.Duration `json:"redis_down_ns"`
}

// JudgeFaults reads the figures off the log. Writes after the end of the run, of holders that were
// stopped until then, count for everything but grants and gaps.
func JudgeFaults(run FaultRun) FaultFigures {
	f := FaultFigures{MayGap: run.Lease + GapSlack}
	for _, down := range run.Down {
		f.Down += run.Overlap(down)
	}
	gap := func(from, to int64) {
		g := rig.Span{From: from, To: to}
		long := time.Duration(to - from)
		up := long
		for _, down := range run.Down {
			up -= g.Overlap(down)
		}
		f.LongestGap = max(f.LongestGap, long)
		if up > f.LongestGapUp {
			f.LongestGapUp, f.GapUpAt = up, time.Duration(from-run.From)
		}
	}
	type owner struct{ pid, goroutine int }
	var (
		owners  = map[uint64]owner{}
		shared  = map[uint64]bool{}
		begins  = map[uint64]int{}
		highest uint64
		open    uint64 // the fence whose begin was accepted last, until its end is
		began   = run.From
	)
	for _, w := range run.Log {
		during := w.At >= run.From && w.At < run.To
		who := owner{w.PID, w.Goroutine}
		if first, known := owners[w.Fence]; !known {
			owners[w.Fence] = who
		} else if first != who {
			shared[w.Fence] = true
		}
		if !w.End {
			if begins[w.Fence]++; begins[w.Fence] == 2 {
				f.BegunTwice++
			}
			if during {
				f.Grants++
			}
		}
		if w.Refused {
			f.Refused++
			continue
		}
		if w.Fence < highest {
			f.Inversions++
		}
		highest = max(highest, w.Fence)
		switch {
		case w.End && w.Fence == open:
			open = 0
		case w.End:
		default:
			if open != 0 && open != w.Fence {
				f.Takeovers++
			}
			open = w.Fence
			if during {
				gap(began, w.At)
				began = w.At
			}
		}
	}
	gap(began, run.To)
	f.TwoOwners = len(shared)
	f.GrantsPerSecond = float64(f.Grants) / time.Duration(run.To-run.From).Seconds()
	return f
}

// Err says which promises of the lock were broken. It is nil when none was.
func (f FaultFigures) Err() error {
	var errs []error
	count := func(n int, what string) {
		if n > 0 {
			errs = append(errs, fmt.Errorf("%s: %d", what, n))
		}
	}
	count(f.Inversions, "accepted fence inversions")
	count(f.TwoOwners, "fences with two owners")
	count(f.BegunTwice, "fences begun twice")
	if f.LongestGapUp > f.MayGap {
		errs = append(errs, fmt.Errorf("nobody got the key for %v while Redis was up; want at most %v",
			f.LongestGapUp.Round(time.Millisecond), f.MayGap))
	}
	return errors.Join(errs...)
}
