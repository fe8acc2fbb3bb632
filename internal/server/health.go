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
	ended := make([]<-chan struct{}, len(h.probes))
	for i, p := range h.probes {
		ended[i] = p.begin()
	}
	found := make(map[string]error, len(h.probes))
	for i, p := range h.probes {
		select {
		case <-ended[i]:
		case <-ctx.Done():
		}
		found[p.check.Name] = p.result()
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

	mu      sync.Mutex
	running chan struct{} // closed at the end of the run that is under way; nil: none is
	err     error         // of the last run that has ended
	ended   time.Time     // when that was
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// begin sees to it that there is a fresh result once the channel is closed.
func (p *probe) begin() <-chan struct{} {
	if p.check.Now != nil {
		return closed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running != nil {
		return p.running
	}
	fresh := passFresh
	if p.err != nil {
		fresh = failFresh
	}
	if !p.ended.IsZero() && time.Since(p.ended) < fresh {
		return closed
	}
	done := make(chan struct{})
	p.running = done
	go p.run(done)
	return done
}

// run makes the check. Whoever asked first may be gone before the others: it is not cancelled with them. One that
// hangs, as on a file system whose server is away, keeps this goroutine and no other.
func (p *probe) run(done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), checkFor)
	defer cancel()
	err := p.check.Run(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.ended, p.running = err, time.Now(), nil
	close(done)
}

// result is that of the last run, unless one has begun since and is still under way.
func (p *probe) result() error {
	if p.check.Now != nil {
		return p.check.Now()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running != nil {
		return errNoAnswer
	}
	return p.err
}
