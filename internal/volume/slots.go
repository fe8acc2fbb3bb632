package volume

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"lockstep/events"
)

// Slots limits how many syncs and moves of a process use processor and disk at once: index what was received, compare,
// build. They take turns in order of arrival. None has a slot while it waits for its lease or for a remote.
type Slots struct {
	size    int
	free    *semaphore.Weighted
	large   *semaphore.Weighted // one job with a large tree at a time; it is awaited before a slot
	waiting atomic.Int64
	spare   atomic.Pointer[context.CancelCauseFunc] // cancels the work of TryDo; nil before the first

	closed context.Context
	close  context.CancelFunc
}

// NewSlots returns n slots, at least one.
func NewSlots(n int) *Slots {
	s := &Slots{size: max(n, 1)}
	s.free, s.large = semaphore.NewWeighted(int64(s.size)), semaphore.NewWeighted(1)
	s.closed, s.close = context.WithCancel(context.Background())
	return s
}

// waitingPerSlot is how many jobs may wait for each slot before a process takes no more changes: enough to keep every
// slot busy while more are read, but few enough to leave the rest to other processes.
const waitingPerSlot = 4

// Room returns how many more changes this process should take, for [stream.SubscriberConfig]: none while more jobs wait
// for a slot than soon get one. Those that wait for remotes do not count; only the window limits them.
func (s *Slots) Room() int { return waitingPerSlot*s.size - int(s.waiting.Load()) }

// ErrWanted is the cause with which optional work is cancelled because others wait.
var ErrWanted = errors.New("others wait for the slot or the lease")

// TryDo calls work in a slot if one is free, and cancels it as soon as a job waits for a slot. It returns ErrWanted if
// none is free. Only one call may run at a time.
func (s *Slots) TryDo(ctx context.Context, work func(context.Context) error) error {
	if !s.free.TryAcquire(1) {
		return ErrWanted
	}
	defer s.free.Release(1)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.spare.Store(&cancel)
	if s.waiting.Load() > 0 { // since before Store
		return ErrWanted
	}
	return work(ctx)
}

// acquire waits for a slot. It returns an error if ctx is done.
func (s *Slots) acquire(ctx context.Context) error {
	if s.free.TryAcquire(1) {
		return nil
	}
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	if cancel := s.spare.Load(); cancel != nil {
		(*cancel)(ErrWanted)
	}
	if err := s.free.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait for a work slot: %w", context.Cause(ctx))
	}
	return nil
}

// Close ends the waits of jobs that have done nothing yet, now and from now on: their changes return to the stream.
// Jobs that find a slot free, have received something or had a slot before continue.
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
	large bool // its tree is large
	began bool // the job has done something that would be lost: Close does not end its waits
}

// take waits for a slot unless the job has it. progress shows the wait.
func (t *slot) take(ctx context.Context, progress *reporter) error {
	if t.slots == nil || t.held {
		return nil
	}
	if !t.tryTake() {
		progress.begin(events.PhaseWait, "", 0)
		if !t.began {
			waiting, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			defer context.AfterFunc(t.slots.closed, func() { cancel(errStopping) })()
			ctx = waiting
		}
		if err := t.await(ctx); err != nil {
			return err
		}
	}
	t.held, t.began = true, true
	return nil
}

// tryTake takes a small job's slot if one is free.
func (t *slot) tryTake() bool { return !t.large && t.slots.free.TryAcquire(1) }

func (t *slot) await(ctx context.Context) error {
	if t.large {
		t.slots.waiting.Add(1)
		err := t.slots.large.Acquire(ctx, 1)
		t.slots.waiting.Add(-1)
		if err != nil {
			return fmt.Errorf("wait for a turn among large trees: %w", context.Cause(ctx))
		}
	}
	err := t.slots.acquire(ctx)
	if err != nil && t.large {
		t.slots.large.Release(1)
	}
	return err
}

// grow says that the job's tree is large: whenever it has the slot, no other job with a large tree has one.
func (t *slot) grow(ctx context.Context, progress *reporter) error {
	t.leave()
	t.large = true
	return t.take(ctx, progress)
}

// leave gives the slot, if the job has it, to the job that has waited longest.
func (t *slot) leave() {
	if !t.held {
		return
	}
	t.held = false
	t.slots.free.Release(1)
	if t.large {
		t.slots.large.Release(1)
	}
}
