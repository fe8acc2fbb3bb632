package lock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"lockstep/bench/rig"
)

// gapSlack is the time, in addition to a lease, that a key may be without a new holder during any fault.
const gapSlack = time.Second

// write is one attempt to write to the volume at the begin or the end of a grant. It is refused if a higher fence has written
// before.
type write struct {
	At             int64
	Fence          uint64
	End, Refused   bool
	PID, Goroutine int
}

// writeSize is the length of a write in the log, in bytes. It divides a page, so that a killed process leaves a whole line or
// none.
const writeSize = 64

// line formats the write for the log, padded to writeSize: <at> <fence> begin|end accepted|refused <pid> <goroutine>.
func (w write) line() string {
	what, outcome := "begin", "accepted"
	if w.End {
		what = "end"
	}
	if w.Refused {
		outcome = "refused"
	}
	line := fmt.Sprintf("%d %d %s %s %d %d", w.At, w.Fence, what, outcome, w.PID, w.Goroutine)
	return fmt.Sprintf("%-*s\n", writeSize-1, line)
}

// parseWrite reads a line of the log.
func parseWrite(line string) (write, error) {
	var w write
	var what, outcome, rest string
	n, _ := fmt.Sscan(line, &w.At, &w.Fence, &what, &outcome, &w.PID, &w.Goroutine, &rest)
	w.End, w.Refused = what == "end", outcome == "refused"
	if n != 6 || !w.End && what != "begin" || !w.Refused && outcome != "accepted" {
		return write{}, fmt.Errorf("write %q: want a time, a fence, begin or end, accepted or refused, a pid and a goroutine",
			strings.TrimSpace(line))
	}
	return w, nil
}

// faultRun is the record of a run.
type faultRun struct {
	rig.Span
	Lease time.Duration
	Log   []write    // in the order of the log
	Down  []rig.Span // periods when Redis did not answer; they do not overlap
}

// FaultFigures has the figures of a run.
type FaultFigures struct {
	Grants          int     `json:"grants"` // begun grants, including refused ones
	GrantsPerSecond float64 `json:"grants_per_second"`
	Takeovers       int     `json:"takeovers"` // accepted begins before the last holder's end
	Refused         int     `json:"refused_stale_writes"`

	// Each of these must be 0.
	Inversions int `json:"accepted_fence_inversions"` // accepted writes below an accepted fence
	TwoOwners  int `json:"fences_with_two_owners"`    // refused or not
	BegunTwice int `json:"fences_begun_twice"`        // refused or not

	// The longest time without an accepted begin: in total, and excluding the time during which Redis was down, which must not
	// exceed MayGap. The start and the end of the run count as begins.
	LongestGap   time.Duration `json:"longest_gap_ns"`
	LongestGapUp time.Duration `json:"longest_gap_redis_up_ns"`
	GapUpAt      time.Duration `json:"longest_gap_redis_up_at_ns"` // since the start of the run
	MayGap       time.Duration `json:"gap_limit_ns"`
	Down         time.Duration `json:"redis_down_ns"`
}

// judgeFaults computes the figures from the log. Grants and gaps exclude writes after the end of the run, whose holders were
// stopped until then; the other figures include them.
func judgeFaults(run faultRun) FaultFigures {
	f := FaultFigures{MayGap: run.Lease + gapSlack}
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
		open    uint64 // fence of the last accepted begin, 0 after its end
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

// Err returns an error for each guarantee of the lock that was broken.
func (f FaultFigures) Err() error {
	err := rig.Faults(rig.Fault{What: "accepted fence inversions", Count: f.Inversions},
		rig.Fault{What: "fences with two owners", Count: f.TwoOwners}, rig.Fault{What: "fences begun twice", Count: f.BegunTwice})
	if f.LongestGapUp > f.MayGap {
		err = errors.Join(err, fmt.Errorf("nobody got the key for %v while Redis was up; want at most %v",
			f.LongestGapUp.Round(time.Millisecond), f.MayGap))
	}
	return err
}
