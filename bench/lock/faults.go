package lock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"lockstep/bench/rig"
)

// gapSlack is the time, in addition to a lease, that a key may be without a new holder during any fault.
const gapSlack = time.Second

// write is one attempt to write to the volume at the begin or the end of a grant.
type write struct {
	At      int64
	Fence   uint64
	End     bool
	Refused bool // a higher fence had written before
	PID     int
	Waiter  int
}

// writeFormat has a fixed length, 64, that divides a page, so that a killed process leaves a whole line in the log or none.
const writeFormat = "%18d %20d %5t %5t %7d %3d\n"

func parseWrite(line string) (w write, err error) {
	if _, err = fmt.Sscan(line, &w.At, &w.Fence, &w.End, &w.Refused, &w.PID, &w.Waiter); err != nil {
		err = fmt.Errorf("write %q: %w", line, err)
	}
	return w, err
}

// readLog reads the log.
func (v volume) readLog() (all []write, err error) {
	log, err := os.ReadFile(v.path("log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(log)) {
		w, err := parseWrite(line)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

// FaultReport is the result of a run with faults.
type FaultReport struct {
	Processes int            `json:"processes"`
	Waiters   int            `json:"waiters"`
	Lease     time.Duration  `json:"lease_ns"`
	Duration  time.Duration  `json:"duration_ns"`
	Faults    map[string]int `json:"faults"` // by kind
	Grants    int            `json:"grants"`
	Refused   int            `json:"refused_stale_writes"`

	// Each of these must be 0.
	Inversions int `json:"accepted_fence_inversions"` // accepted writes below an accepted fence
	TwoOwners  int `json:"fences_with_two_owners"`    // begun twice, accepted or not

	// LongestGap is the longest time without an accepted begin, excluding the time during which Redis was down. The start and the end of the
	// run count as begins. It must not exceed a lease and gapSlack.
	LongestGap time.Duration `json:"longest_gap_redis_up_ns"`

	volume volume
}

// judge computes the figures from the log of a run. Gaps exclude writes after the end of the run, whose holders were stopped until then.
func (r *FaultReport) judge(run rig.Span, log []write, down []rig.Span) {
	begun, highest, began := map[uint64]bool{}, uint64(0), run.From
	gap := func(to int64) {
		without := rig.Span{From: began, To: to}
		up := time.Duration(to - began)
		for _, d := range down {
			up -= without.Overlap(d)
		}
		r.LongestGap = max(r.LongestGap, up)
		began = to
	}
	for _, w := range log {
		if !w.End {
			r.Grants++
			if begun[w.Fence] {
				r.TwoOwners++
			}
			begun[w.Fence] = true
		}
		if w.Refused {
			r.Refused++
			continue
		}
		if w.Fence < highest {
			r.Inversions++
		}
		highest = max(highest, w.Fence)
		if !w.End && w.At < run.To {
			gap(w.At)
		}
	}
	gap(run.To)
}

// Verdict returns an error for each guarantee of the lock that was broken, and keeps the log; otherwise it removes the log.
func (r FaultReport) Verdict() error {
	var err error
	if r.Inversions+r.TwoOwners > 0 {
		err = fmt.Errorf("%d accepted fence inversions, %d fences with two owners", r.Inversions, r.TwoOwners)
	}
	if most := r.Lease + gapSlack; r.LongestGap > most {
		err = errors.Join(err, fmt.Errorf("nobody got the key for %v while Redis was up; want at most %v", r.LongestGap.Round(time.Millisecond), most))
	}
	if err != nil {
		return fmt.Errorf("bench with faults: %w\nthe log is in %s", err, r.volume.dir)
	}
	return os.RemoveAll(r.volume.dir)
}

// Table prints the report as text.
func (r FaultReport) Table(w io.Writer) error {
	fmt.Fprintf(w, "%d processes × %d waiters, one key, lease %v, %v\n\n", r.Processes, r.Waiters, r.Lease, r.Duration)
	tw := rig.NewTable(w)
	fmt.Fprintln(tw, "\t\tat most\t")
	for _, kind := range []string{faultKill, faultStop, faultRestart, faultEmpty} {
		fmt.Fprintf(tw, "%s\t%d\t\t\n", kind, r.Faults[kind])
	}
	fmt.Fprintf(tw, "grants\t%d\t\t\n", r.Grants)
	fmt.Fprintf(tw, "refused stale writes\t%d\t\t\n", r.Refused)
	fmt.Fprintf(tw, "accepted fence inversions\t%d\t0\t\n", r.Inversions)
	fmt.Fprintf(tw, "fences with two owners\t%d\t0\t\n", r.TwoOwners)
	fmt.Fprintf(tw, "longest gap, Redis up, s\t%.3f\t%.3f\t\n", r.LongestGap.Seconds(), (r.Lease + gapSlack).Seconds())
	return tw.Flush()
}
