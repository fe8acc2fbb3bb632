package server

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Check is a health check of a dependency or a component of the process. Its error is shown to everyone who can reach
// the port, so it must be a few words without addresses, paths or repositories.
type Check struct {
	Name string
	Run  func(ctx context.Context) error // ctx ends after a second; never runs concurrently with itself
	Now  func() error                    // used instead of Run by checks that are instant; not cached

	// Alternative names a check that can replace this one: failures are critical only if both fail.
	Alternative string
	// DependsOn names another check. This check's failure is critical only if that one passes.
	DependsOn string
	// NonCritical marks a check whose failure is reported but does not affect the process' health.
	NonCritical bool
}

const (
	checkTimeout = time.Second

	// Results are cached, so that dependencies are checked at most once a second no matter how many requests arrive.
	// Failures expire sooner, so as not to delay startup.
	passTTL = time.Second
	failTTL = time.Second / 10
)

var errNoAnswer = errors.New("no answer within a second")

// Health runs a set of checks. It is safe for concurrent use. A nil Health always passes.
type Health struct {
	probes []*probe
}

// NewHealth returns a Health for checks with distinct names.
func NewHealth(checks ...Check) *Health {
	h := &Health{}
	for _, c := range checks {
		h.probes = append(h.probes, &probe{check: c})
	}
	return h
}

// Report is the outcome of all checks.
type Report struct {
	OK     bool      `json:"ok"`
	Checks []Finding `json:"checks"`
}

// Finding is the outcome of one check.
type Finding struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Counts bool   `json:"counts"`           // false if the check failed and its failure is not critical
	Reason string `json:"reason,omitempty"` // why it failed
}

// Report runs all checks concurrently and returns after at most a second, or when ctx is done.
func (h *Health) Report(ctx context.Context) Report {
	report := Report{OK: true, Checks: []Finding{}}
	if h == nil {
		return report
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	runs := make([]*run, len(h.probes))
	for i, p := range h.probes {
		runs[i] = p.start()
	}
	errs := make(map[string]error, len(h.probes))
	for i, p := range h.probes {
		errs[p.check.Name] = runs[i].result(ctx)
	}
	for _, p := range h.probes {
		f := Finding{Name: p.check.Name, OK: true, Counts: true}
		if err := errs[f.Name]; err != nil {
			f.OK, f.Counts, f.Reason = false, p.check.critical(errs), err.Error()
			report.OK = report.OK && !f.Counts
		}
		report.Checks = append(report.Checks, f)
	}
	return report
}

// critical reports whether the check's failure makes the process unhealthy, given the errors of all checks.
func (c Check) critical(errs map[string]error) bool {
	alternative, exists := errs[c.Alternative]
	if c.NonCritical || exists && alternative == nil {
		return false
	}
	return errs[c.DependsOn] == nil
}

// probe runs one check, never concurrently with itself, and caches its result.
type probe struct {
	check Check

	mu   sync.Mutex
	last *run // the current or most recent run; nil before the first
}

type run struct {
	done  chan struct{} // closed when the run has ended
	err   error         // valid once done is closed
	ended time.Time     // valid once done is closed
}

// fresh reports whether the run is still in progress or its result has not expired.
func (r *run) fresh() bool {
	select {
	case <-r.done:
	default:
		return true
	}
	if r.err != nil {
		return time.Since(r.ended) < failTTL
	}
	return time.Since(r.ended) < passTTL
}

// result waits for the run to end and returns its error, or errNoAnswer if ctx is done first.
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

// start returns the current run or a cached one, or else starts a new one.
func (p *probe) start() *run {
	if p.check.Now != nil {
		return &run{done: closed, err: p.check.Now()}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil || !p.last.fresh() {
		p.last = &run{done: make(chan struct{})}
		go p.last.execute(p.check)
	}
	return p.last
}

// execute runs the check. It does not use a request's context, because several requests may share the run. A check that
// hangs, for example on an unreachable network file system, blocks only this goroutine.
func (r *run) execute(check Check) {
	defer close(r.done)
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	r.err = check.Run(ctx)
	r.ended = time.Now()
}
