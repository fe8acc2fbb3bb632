package locking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const releaseTimeout = 2 * time.Second // how long Release tries to reach Redis before it leaves the lease to expire

// Lease is the right to work on a key, from Acquire until Release or loss.
type Lease struct {
	locker *Locker
	queue  *waitQueue
	req    Request
	token  string
	fence  uint64
	since  int64 // time of the grant by Redis' clock, µs
	began  time.Time

	ctx    context.Context
	cancel context.CancelCauseFunc
	over   chan struct{} // closed when ending is set
	wanted chan struct{} // closed once another request waits

	release sync.Once
	result  error // result of release

	// Guarded by Locker.mu.
	deadline time.Time // held until then, by the local monotonic clock
	renewAt  time.Time
	inDoubt  bool  // whether the doubt was logged
	ending   error // why the lease ended; nil until then
}

// newLease returns the lease of a grant. The caller holds mu.
func (l *Locker) newLease(q *waitQueue, w *waiter, token string, a answer) *Lease {
	lease := &Lease{
		locker: l, queue: q, req: w.req, token: token, fence: a.fence, since: a.since, began: time.Now(),
		over: make(chan struct{}), wanted: make(chan struct{}),
	}
	lease.ctx, lease.cancel = context.WithCancelCause(w.ctx)
	lease.setHeldUntil(a.deadline())
	return lease
}

// Key returns the key of the lease.
func (l *Lease) Key() string { return l.req.Key }

// Fence returns the number of this grant, which is higher than that of every earlier grant of the key.
func (l *Lease) Fence() uint64 { return l.fence }

// Began returns when the lease was granted, by the local clock.
func (l *Lease) Began() time.Time { return l.began }

// Context returns a context that is cancelled by Release or, with cause ErrLost, when the lease is lost.
func (l *Lease) Context() context.Context { return l.ctx }

// Wanted returns a channel that is closed once another request waits for the lease. Requests of other
// processes are only noticed by a lease whose request has the policy [Yield], within a round trip.
func (l *Lease) Wanted() <-chan struct{} { return l.wanted }

// want closes Wanted. The caller holds mu.
func (l *Lease) want() {
	select {
	case <-l.wanted:
	default:
		close(l.wanted)
	}
}

// Confirm asks Redis whether the lease is held, and renews it. It returns nil if the lease is held, or if
// Redis does not answer but cannot have granted the lease to another request yet. It waits while the lease
// is in doubt, and returns ErrLost or the cause of ctx's cancellation.
func (l *Lease) Confirm(ctx context.Context) error {
	for pause := retryPause; ; {
		if err := l.ended(); err != nil {
			return fmt.Errorf("confirm %s: %w", l.req.Key, err)
		}
		err := l.locker.renew(ctx, []*Lease{l})
		switch {
		case l.ended() != nil:
			continue
		case err == nil, ctx.Err() == nil && l.heldAt(time.Now()):
			return nil
		}
		timer := time.NewTimer(jitter(pause))
		select {
		case <-l.over:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil && l.ended() == nil {
			return fmt.Errorf("confirm %s: %w: %w", l.req.Key, context.Cause(ctx), err)
		}
		pause = min(2*pause, maxPause)
	}
}

// Guard lets another script on the same Redis check the lease together with its own writes. The lease is held
// if the hash at Key has this Owner and this Fence, and its field expires is later than Redis' TIME, in µs. If
// it is held and the key Queue does not exist, no other process waits, and the script may release the lease
// in the same step by removing the fields owner and expires. The caller must then call [Lease.MarkReleased].
type Guard struct {
	Key   string
	Owner string
	Fence uint64
	Queue string
}

// Guard returns the lease's guard.
func (l *Lease) Guard() Guard {
	lock := l.locker.lockKey(l.req.Key)
	return Guard{Key: lock, Owner: l.token, Fence: l.fence, Queue: lock + queueSuffix}
}

// HasLocalWaiters reports whether this process has requests waiting for the lease. They are not in Guard.Queue.
func (l *Lease) HasLocalWaiters() bool {
	l.locker.mu.Lock()
	defer l.locker.mu.Unlock()
	return len(l.queue.waiters) > 0
}

// MarkReleased records that a script has released the lease, see [Guard]. Unlike Release it does not call Redis.
func (l *Lease) MarkReleased() {
	l.release.Do(func() {
		l.locker.mu.Lock()
		lost := l.lost()
		delete(l.locker.leases, l.token)
		l.end(errReleased)
		l.locker.startNext(l.queue, nil, answer{}, nil)
		l.locker.mu.Unlock()
		held := time.Since(l.began)
		if !lost {
			l.locker.cfg.Observer.Released(held)
		}
		l.locker.logReleased(l.ctx, l, held)
	})
}

// Release gives the lease to the next waiter. It ignores ctx's cancellation and retries for 2 s. If that
// fails the lease expires, so the error may be ignored. Release returns ErrLost if the lease was lost.
// Repeated calls return the same result.
func (l *Lease) Release(ctx context.Context) error {
	l.release.Do(func() { l.result = l.locker.releaseOnce(context.WithoutCancel(ctx), l) })
	return l.result
}

func (l *Locker) releaseOnce(ctx context.Context, lease *Lease) error {
	l.mu.Lock()
	lost := lease.lost()
	lease.end(errReleased)
	l.mu.Unlock()

	took := time.Since(lease.began)
	a, err := l.releaseAndAdvance(ctx, lease.queue, lease.token)
	if !lost {
		l.cfg.Observer.Released(took)
	}
	if err != nil {
		return fmt.Errorf("release %s: %w", lease.req.Key, err)
	}
	l.logReleased(ctx, lease, took)
	if a.verdict == gone {
		return fmt.Errorf("release %s: %w", lease.req.Key, ErrLost)
	}
	return nil
}

func (l *Locker) logReleased(ctx context.Context, lease *Lease, held time.Duration) {
	l.cfg.Log.DebugContext(ctx, "lock released", l.cfg.KeyName, lease.req.Key, "job", lease.req.Job,
		"fence", lease.fence, "held", held)
}

// end records why the lease ended, unless it has already ended. The caller holds mu.
func (l *Lease) end(why error) {
	if l.ending != nil {
		return
	}
	l.ending = why
	close(l.over)
	if errors.Is(why, errReleased) {
		why = nil // ordinary cancellation
	}
	l.cancel(why)
}

// lost reports whether the lease ended other than by release. The caller holds mu.
func (l *Lease) lost() bool { return l.ending != nil && !errors.Is(l.ending, errReleased) }

// ended returns why the lease ended, or nil while it is held or in doubt.
func (l *Lease) ended() error {
	l.locker.mu.Lock()
	defer l.locker.mu.Unlock()
	return l.ending
}

func (l *Lease) heldAt(t time.Time) bool {
	l.locker.mu.Lock()
	defer l.locker.mu.Unlock()
	return t.Before(l.deadline)
}

// setHeldUntil records that the lease is held at least until t. The caller holds mu.
func (l *Lease) setHeldUntil(t time.Time) {
	left := time.Until(t)
	l.deadline = t.Add(-left / 100) // allow for clock drift
	l.renewAt = time.Now().Add(left / 4)
	l.inDoubt = false
}

// holder returns the lease's holder as other processes see it. The caller holds mu.
func (l *Lease) holder() Holder {
	return Holder{
		Worker: l.locker.cfg.Worker, Job: l.req.Job, Operation: l.req.Operation, yields: l.req.IfHeld == Yield,
		Since: time.UnixMicro(l.since), Fence: l.fence, Remaining: max(0, time.Until(l.deadline)),
	}
}

// Leases are leases acquired together by AcquireAll.
type Leases []*Lease

// AcquireAll acquires all keys or none, and returns the leases in the order of the requests. It acquires keys in byte
// order, so that two calls cannot deadlock. The longest Wait of the requests is the timeout of the whole call.
//
// It returns the errors of Acquire, and an error if a key occurs twice, because leases are not reentrant.
func (l *Locker) AcquireAll(ctx context.Context, reqs ...Request) (Leases, error) {
	if len(reqs) == 0 {
		return nil, errors.New("locking: AcquireAll without a request")
	}
	order := make([]int, len(reqs))
	wait := time.Duration(0)
	for i, req := range reqs {
		order[i] = i
		wait = max(wait, cmp.Or(req.Wait, l.cfg.Wait))
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(reqs[a].Key, reqs[b].Key) })
	for i := 1; i < len(order); i++ {
		if key := reqs[order[i]].Key; key == reqs[order[i-1]].Key {
			return nil, fmt.Errorf("locking: AcquireAll got key %q twice", key)
		}
	}

	leases := make(Leases, len(reqs))
	deadline := time.Now().Add(wait)
	for _, i := range order {
		req := reqs[i]
		req.Wait = max(time.Until(deadline), time.Millisecond)
		lease, err := l.Acquire(ctx, req)
		if err != nil {
			_ = leases.Release(ctx) // otherwise they expire
			return nil, err
		}
		leases[i] = lease
		ctx = lease.Context() // losing this lease cancels the following ones
	}
	return leases, nil
}

// Context returns a context that is cancelled with cause ErrLost when any of the leases is lost.
func (ls Leases) Context() context.Context {
	// The lease of the highest key was acquired last, so its context derives from all others.
	return slices.MaxFunc(ls, func(a, b *Lease) int { return cmp.Compare(a.Key(), b.Key()) }).Context()
}

// Confirm calls Lease.Confirm for every lease.
func (ls Leases) Confirm(ctx context.Context) error {
	for _, lease := range ls {
		if err := lease.Confirm(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Release releases all leases, in reverse order of acquisition.
func (ls Leases) Release(ctx context.Context) error {
	held := slices.DeleteFunc(slices.Clone(ls), func(lease *Lease) bool { return lease == nil })
	slices.SortFunc(held, func(a, b *Lease) int { return cmp.Compare(b.Key(), a.Key()) })
	var errs []error
	for _, lease := range held {
		errs = append(errs, lease.Release(ctx))
	}
	return errors.Join(errs...)
}
