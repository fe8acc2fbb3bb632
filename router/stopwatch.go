package router

import (
	"errors"
	"sync"
	"time"

	"lockstep/events"
)

// Work is one attempt at a change, from the moment it had its lease and a slot.
type Work struct {
	Operation string        // sync, remove, move or poll
	Took      time.Duration // with the settling
	Received  int64         // bytes of packs from the remote
	Err       error         // nil: it is settled
}

// errPanicked is the error of an attempt that returned none, and nothing else.
var errPanicked = errors.New("the handler panicked")

// stopwatch follows one attempt at a change.
type stopwatch struct {
	began     time.Time
	published time.Time // when the handler was done
	settled   time.Time
	pass      func(events.Progress) // who else is told of progress; nil: nobody

	mu      sync.Mutex
	remote  bool      // the phase under way is the remote's: it lists, or sends
	fetched time.Time // when such a phase last ended
	before  int64     // bytes received in earlier fetches
	bytes   int64     // and in the last one
}

// start begins an attempt: the job is told whom to tell of its progress. stop is to be called with what became of it.
func (c *Changes) start(job *events.Job) (w *stopwatch, stop func(error)) {
	w = &stopwatch{began: time.Now()}
	end := func() {}
	if c.Begin != nil {
		w.pass, end = c.Begin(*job)
	}
	job.Progress = w.progress
	if phase, ok := onlyPhase[job.Change.Type]; ok {
		w.progress(events.Progress{Phase: phase})
	}
	return w, func(err error) {
		end()
		if c.Worked == nil {
			return
		}
		if w.settled.IsZero() {
			w.settled = time.Now()
		}
		c.Worked(Work{Operation: job.Change.Type.Operation(), Took: w.settled.Sub(w.began), Received: w.received(), Err: err})
	}
}

// onlyPhase is the phase of a change that has but one.
var onlyPhase = map[events.ChangeType]events.Phase{
	events.ChangeRemoved: events.PhaseRemove, events.ChangeMoved: events.PhaseMove, events.ChangeDue: events.PhasePoll,
}

func (w *stopwatch) progress(p events.Progress) {
	w.mu.Lock()
	remote := p.Phase == events.PhaseList || p.Phase == events.PhaseFetch
	if w.remote && !remote {
		w.fetched = time.Now()
	}
	w.remote = remote
	if p.Phase == events.PhaseFetch && p.Unit == "bytes" {
		if p.Done < w.bytes { // everything is fetched once more
			w.before += w.bytes
		}
		w.bytes = p.Done
	}
	w.mu.Unlock()
	if w.pass != nil {
		w.pass(p)
	}
}

// fetchedBy is when the remote had sent all, for work that was done at a moment; zero when it was not asked.
func (w *stopwatch) fetchedBy(done time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.remote {
		return done
	}
	return w.fetched
}

func (w *stopwatch) received() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.before + w.bytes
}
