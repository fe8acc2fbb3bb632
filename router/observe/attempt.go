package observe

import (
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events"
)

// Attempt follows one call of a change's handler and the settlement of its outcome.
type Attempt struct {
	delivery *Delivery
	job      *events.Job

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

// Begin follows an attempt at job and sets job.Progress. The caller calls Returned when the handler returns, Settled if
// its outcome is settled, and End in any case.
func (d *Delivery) Begin(job *events.Job) *Attempt {
	a := &Attempt{delivery: d, job: job, began: time.Now(), units: map[string]int64{}}
	d.span.SetAttributes(attrFence.Int64(int64(job.Fence)))
	d.events(Event{Kind: Began, Job: job})
	job.Progress = a.progress
	if phase, ok := onlyPhase[job.Change.Type]; ok {
		a.progress(events.Progress{Phase: phase})
	}
	return a
}

func (a *Attempt) progress(p events.Progress) {
	if a.record(p) {
		a.delivery.events(Event{Kind: Progressed, Job: a.job, Progress: p})
	}
}

// record records progress. It returns false if the handler has returned.
func (a *Attempt) record(p events.Progress) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.returned {
		return false
	}
	if p.Phase != a.phase {
		a.leave(nil)
		a.phase, a.entered, a.span = p.Phase, time.Now(), a.delivery.child(string(p.Phase))
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
func (a *Attempt) leave(err error) {
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
	endSpan(a.span, err)
	a.span = nil
}

// Returned reports that the handler has returned, and returns how long it took.
func (a *Attempt) Returned(err error) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leave(err)
	a.returned, a.published = true, time.Now()
	return a.published.Sub(a.began)
}

// Settled reports that the change is settled with an outcome and a result.
func (a *Attempt) Settled(outcome string, result events.Result) {
	a.mu.Lock()
	a.settled = time.Now()
	t := a.delivery.timeline(a.job.Change)
	t.Leased, t.Began, t.Fetched, t.Published = a.delivery.leased, a.began.Add(a.waited[0]+a.waited[1]), a.fetched, a.published
	if !t.Fetched.IsZero() {
		t.Fetched = t.Fetched.Add(a.waited[1]) // the stages are drawn as if all waits had come first
	}
	a.mu.Unlock()
	a.delivery.ended(t.ended(outcome, a.settled), result.Class, result.Missing)
}

// End reports the end of the attempt. err is nil if the change is settled.
func (a *Attempt) End(err error) {
	a.mu.Lock()
	if a.settled.IsZero() {
		a.settled = time.Now()
	}
	a.leave(nil) // if the handler has panicked
	a.returned = true
	e := Event{Kind: Attempted, Job: a.job, Took: a.settled.Sub(a.began), Received: a.earlier + a.received, Err: err}
	a.mu.Unlock()
	a.delivery.events(e)
}
