package volume

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"lockstep/events"
)

// Slots limits how many jobs of a process use processor and disk at once: index what was received, compare, build. They
// take turns in order of arrival. No job has a slot while it waits for its lease or for a remote, and none has two.
type Slots struct {
	size    int
	free    *semaphore.Weighted
	waiting atomic.Int64

	closed context.Context
	close  context.CancelFunc
}

// NewSlots returns n slots, at least one.
func NewSlots(n int) *Slots {
	s := &Slots{size: max(n, 1)}
	s.free = semaphore.NewWeighted(int64(s.size))
	s.closed, s.close = context.WithCancel(context.Background())
	return s
}

// waitingPerSlot is how many jobs may wait for each slot before a process takes no more changes: enough to keep every
// slot busy while more are read, but few enough to leave the rest to other processes.
const waitingPerSlot = 4

// Room returns how many more changes this process should take, for [stream.SubscriberConfig]: none while more jobs wait
// for a slot than soon get one. Those that wait for remotes do not count; only the window limits them.
func (s *Slots) Room() int { return waitingPerSlot*s.size - int(s.waiting.Load()) }

// AreWanted reports whether jobs wait for a slot.
func (s *Slots) AreWanted() bool { return s.waiting.Load() > 0 }

// Acquire waits for a slot, which the caller must Release. It returns an error if ctx is done, or if the slots are closed
// and none is free.
func (s *Slots) Acquire(ctx context.Context) error {
	if s.free.TryAcquire(1) {
		return nil
	}
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.closed, func() { cancel(errStopping) })()
	if err := s.free.Acquire(waiting, 1); err != nil {
		return fmt.Errorf("wait for a work slot: %w", context.Cause(waiting))
	}
	return nil
}

// Release gives a slot to the job that has waited longest.
func (s *Slots) Release() { s.free.Release(1) }

// Close ends all waits, now and from now on: those changes return to the stream. Jobs that have a slot or find one free
// continue.
func (s *Slots) Close() { s.close() }

var errStopping error = &events.Error{
	Disposition: events.Contention, Scope: events.ScopeNone, Class: events.ClassBusy, RetryAfter: events.AtOnce,
	Err: errors.New("this process is stopping"),
}

// slot is the slot of one job, which takes it for local work and leaves it before it waits for a remote. It is not safe
// for concurrent use.
type slot struct {
	slots *Slots // nil: no limit
	held  bool
}

// take waits for a slot unless the job has it. progress shows the wait.
func (t *slot) take(ctx context.Context, progress *reporter) error {
	if t.slots == nil || t.held {
		return nil
	}
	if !t.slots.free.TryAcquire(1) {
		progress.begin(events.PhaseWait, "", 0)
		if err := t.slots.Acquire(ctx); err != nil {
			return err
		}
	}
	t.held = true
	return nil
}

// leave releases the slot if the job has it.
func (t *slot) leave() {
	if t.held {
		t.held = false
		t.slots.Release()
	}
}
