package server

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Check is one thing that a process depends on, or runs. The text of its error is shown to anybody who can
// reach the port: a few words that name no address, no path and no repository.
type Check struct {
	Name string
	Run  func(ctx context.Context) error // ctx ends after a second; a check that goes on is not begun again meanwhile
	Now  func() error                    // instead of Run, for what is known at once: it is asked each time

	// Or names a check that does in this one's place: failing both counts, failing one is shown.
	// One that is not there fails.
	Or string
	// Behind names a check that this one cannot pass without: while that fails, this one's failure is shown, and
	// whether it counts is decided there.
	Behind string
	// Shown is for what the process does its work without: its failure is shown, and never counts.
	Shown bool
}

const (
	checkFor = time.Second // what a check may take

	// For so long its result is good: however many ask, what is checked is asked once a second, and while it fails ten
	// times, so that a start is not held up.
	passFresh = time.Second
	failFresh = time.Second / 10
)

var errNoAnswer = errors.New("no answer within a second")

// Health is a set of checks that are made together. It is safe for concurrent use; nil passes always.
type Health struct {
	probes []*probe
}

// NewHealth makes a Health of checks with different names.
func NewHealth(checks ...Check) *Health {
	h := &Health{}
	for _, c := range checks {
		h.probes = append(h.probes, &probe{check: c})
	}
	return h
}

// Report is what checks have found.
type Report struct {
	OK     bool      `json:"ok"`
	Checks []Finding `json:"checks"`
}

// Finding is what one check has found.
type Finding struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Counts bool   `json:"counts"`           // false: it failed, and the process is as well as without
	Reason string `json:"reason,omitempty"` // why it failed
}

// Report makes all checks at once, in a second at most, and less when ctx is done sooner.
func (h *Health) Report(ctx context.Context) Report {
	report := Report{OK: true, Checks: []Finding{}}
	if h == nil {
		return report
	}
	ctx, cancel := context.WithTimeout(ctx, checkFor)
	defer cancel()
	runs := make([]*run, len(h.probes))
	for i, p := range h.probes {
		runs[i] = p.begin()
	}
	found := make(map[string]error, len(h.probes))
	for i, p := range h.probes {
		found[p.check.Name] = runs[i].result(ctx)
	}
	for _, p := range h.probes {
		f := Finding{Name: p.check.Name, OK: true, Counts: true}
		if err := found[f.Name]; err != nil {
			f.OK, f.Counts, f.Reason = false, p.check.counts(found), err.Error()
			report.OK = report.OK && !f.Counts
		}
		report.Checks = append(report.Checks, f)
	}
	return report
}

// counts reports whether the check's failure is one of the process, given what all have found.
func (c Check) counts(found map[string]error) bool {
	other, there := found[c.Or]
	switch {
	case c.Shown:
		return false
	case there && other == nil:
		return false
	}
	return found[c.Behind] == nil
}

// probe makes one check, once at a time, and remembers for a while what it found.
type probe struct {
	check Check

	mu   sync.Mutex
	last *run // the one under way, or else the last that has ended; nil before the first
}

// run is one making of a check.
type run struct {
	done  chan struct{} // closed at its end
	err   error         // from then on
	ended time.Time     // likewise
}

// fresh reports whether the run is under way, or ended so lately that another would find the same.
func (r *run) fresh() bool {
	select {
	case <-r.done:
	default:
		return true
	}
	if r.err != nil {
		return time.Since(r.ended) < failFresh
	}
	return time.Since(r.ended) < passFresh
}

// result is what the run has found, once it has, or that it has not when ctx is done.
func (r *run) result(ctx context.Context) error {
	select {
	case <-r.done:
		return r.err
	default:
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return errNoAnswer
	}
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// begin returns a fresh run.
func (p *probe) begin() *run {
	if p.check.Now != nil {
		return &run{done: closed, err: p.check.Now()}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil || !p.last.fresh() {
		p.last = &run{done: make(chan struct{})}
		go p.last.make(p.check)
	}
	return p.last
}

// make makes the check. Whoever asked first may be gone before the others: it is not cancelled with them. One that
// hangs, as on a file system whose server is away, keeps this goroutine and no other.
func (r *run) make(check Check) {
	defer close(r.done)
	ctx, cancel := context.WithTimeout(context.Background(), checkFor)
	defer cancel()
	r.err = check.Run(ctx)
	r.ended = time.Now()
}
