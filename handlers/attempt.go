package handlers

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events"
	"lockstep/router"
)

// attempt follows one call of a change's handler and the settlement of its outcome.
type attempt struct {
	report func(Event)
	ctx    context.Context // with the delivery's span
	job    *Job

	began              time.Time
	published, settled time.Time // zero until then

	mu       sync.Mutex
	returned bool // the handler has returned; later progress is ignored
	phase    events.Phase
	entered  time.Time        // start of the phase
	span     trace.Span       // of the phase; nil before the first
	units    map[string]int64 // what the phase has done, by unit
	fetched  time.Time        // end of the last phase in which the remote lists refs or sends objects
	waited   [2]time.Duration // for a slot, until fetched and since
	earlier  int64            // bytes received in earlier fetches
	received int64            // bytes received in the last fetch
}

// onlyPhase is the phase of the types of change that have a single one.
var onlyPhase = map[events.ChangeType]events.Phase{
	events.ChangeRemoved: events.PhaseRemove, events.ChangeMoved: events.PhaseMove, events.ChangeDue: events.PhasePoll,
}

// begin follows an attempt at job and sets job.Progress. The caller calls hasReturned when the handler
// returns, timeline if its outcome is settled, and end in any case.
func (c *Changes) begin(ctx context.Context, job *Job) *attempt {
	a := &attempt{report: c.report, ctx: ctx, job: job, began: time.Now(), units: map[string]int64{}}
	trace.SpanFromContext(ctx).SetAttributes(attrFence.Int64(int64(job.Fence)))
	a.report(Event{Kind: Began, Job: job})
	job.Progress = a.progress
	if phase, ok := onlyPhase[job.Change.Type]; ok {
		a.progress(events.Progress{Phase: phase})
	}
	return a
}

func (a *attempt) progress(p events.Progress) {
	if a.record(p) {
		a.report(Event{Kind: Progressed, Job: a.job, Progress: p})
	}
}

// record records progress. It returns false if the handler has returned.
func (a *attempt) record(p events.Progress) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.returned {
		return false
	}
	if p.Phase != a.phase {
		a.leave(nil)
		a.phase, a.entered, a.span = p.Phase, time.Now(), router.StartSpan(a.ctx, string(p.Phase))
	}
	if p.Unit != "" && p.Done > 0 {
		a.units[p.Unit] = p.Done
	}
	if p.Phase == events.PhaseFetch && p.Unit == "bytes" {
		if p.Done < a.received { // the fetch has restarted
			a.earlier += a.received
		}
		a.received = p.Done
	}
	return true
}

// leave ends the phase. The caller holds mu.
func (a *attempt) leave(err error) {
	if a.span == nil {
		return
	}
	switch a.phase {
	case events.PhaseList, events.PhaseFetch:
		a.fetched = time.Now()
		a.waited = [2]time.Duration{a.waited[0] + a.waited[1], 0}
	case events.PhaseWait:
		a.waited[1] += time.Since(a.entered)
	}
	for unit, n := range a.units {
		a.span.SetAttributes(attribute.Int64("lockstep."+unit, n))
	}
	clear(a.units)
	router.EndSpan(a.span, err)
	a.span = nil
}

// hasReturned reports that the handler has returned, and returns how long it took.
func (a *attempt) hasReturned(err error) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leave(err)
	a.returned, a.published = true, time.Now()
	return a.published.Sub(a.began)
}

// timeline completes the timeline of a change that is settled with an outcome.
func (a *attempt) timeline(t Timeline, outcome string) Timeline {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settled = time.Now()
	t.Began, t.Fetched, t.Published = a.began.Add(a.waited[0]+a.waited[1]), a.fetched, a.published
	if !t.Fetched.IsZero() {
		t.Fetched = t.Fetched.Add(a.waited[1]) // as if all waits had come first
	}
	return t.ended(outcome, a.settled)
}

// end reports the end of the attempt. err is nil if the change is settled.
func (a *attempt) end(err error) {
	a.mu.Lock()
	if a.settled.IsZero() {
		a.settled = time.Now()
	}
	a.leave(nil) // if the handler has panicked
	a.returned = true
	e := Event{Kind: Attempted, Job: a.job, Took: a.settled.Sub(a.began), Received: a.earlier + a.received, Err: err}
	a.mu.Unlock()
	a.report(e)
}
