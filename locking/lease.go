package locking

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// releaseTimeout bounds how long a release tries to reach Redis. A lease not released lapses.
const releaseTimeout = 2 * time.Second

// Lease is the right to work on a key, from Acquire until Release or loss.
type Lease struct {
	locker *Locker
	queue  *waitQueue
	req    Request
	token  string
	fence  uint64
	since  int64 // µs of Redis' clock
	began  time.Time

	ctx    context.Context
	cancel context.CancelCauseFunc
	over   chan struct{} // closed when ending is set

	release sync.Once
	result  error // of release

	// Guarded by Locker.mu.
	deadline time.Time // held until then, by our own clock
	renewAt  time.Time
	inDoubt  bool  // and it has been logged
	ending   error // why the lease is over; nil while it is not
}

// newLease makes the lease of a grant. The caller holds mu.
func (l *Locker) newLease(q *waitQueue, w *waiter, token string, a answer) *Lease {
	lease := &Lease{
		locker: l, queue: q, req: w.req, token: token,
		fence: a.fence, since: a.since, began: time.Now(),
		over: make(chan struct{}),
	}
	lease.ctx, lease.cancel = context.WithCancelCause(w.ctx)
	lease.setHeldUntil(a.deadline())
	return lease
}

// Key is what the lease is for.
func (l *Lease) Key() string { return l.req.Key }

// Fence is the number of this grant: higher than that of every earlier grant of the key.
func (l *Lease) Fence() uint64 { return l.fence }

// Began is when the lease was granted, by this process' clock.
func (l *Lease) Began() time.Time { return l.began }

// Context derives from the context of Acquire. It is cancelled by Release, and with cause ErrLost
// when the lease is lost.
func (l *Lease) Context() context.Context { return l.ctx }

// Confirm asks Redis whether the lease is held, and renews it. It returns nil if so, or if Redis
// does not answer but cannot have given the lease to another yet. While the lease is in doubt it
// waits. It fails with ErrLost, or with the cause of ctx's end.
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

// Guard lets another script on the same Redis check the lease together with its own changes. The
// lease is held when the hash at Key has this Owner and this Fence, and its field expires is later
// than Redis' TIME, in µs. When it is held and there is no key Queue, nobody waits for it, and the
// script may give it back in the same step: by removing the fields owner and expires. Then
// [Lease.Returned] is to be told.
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

// Awaited reports whether somebody in this process waits for the lease; they are not in its Queue.
func (l *Lease) HasLocalWaiters() bool {
	l.locker.mu.Lock()
	defer l.locker.mu.Unlock()
	return len(l.queue.waiters) > 0
}

// Returned is Release for a lease that a script has given back, see [Guard]. Redis is not asked again.
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

// Release gives the lease to the next in line. It ignores the end of ctx, and tries again for 2 s;
// when that fails the lease runs out by itself, so the error may be ignored. It is ErrLost when the
// lease was another's already. Calling Release again returns the same.
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
	l.cfg.Log.DebugContext(ctx, "lock released", "key", lease.req.Key, "job", lease.req.Job, "fence", lease.fence, "held", held)
}

// end records why the lease is over, if it is not so already. The caller holds mu.
func (l *Lease) end(why error) {
	if l.ending != nil {
		return
	}
	l.ending = why
	close(l.over)
	if errors.Is(why, errReleased) {
		why = nil // an ordinary cancellation
	}
	l.cancel(why)
}

// lost reports whether the lease ended otherwise than by being given back. The caller holds mu.
func (l *Lease) lost() bool { return l.ending != nil && !errors.Is(l.ending, errReleased) }

// ended is nil while the lease is held or in doubt.
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

// setHeldUntil takes in that the lease ends no sooner than t. The caller holds mu.
func (l *Lease) setHeldUntil(t time.Time) {
	left := time.Until(t)
	l.deadline = t.Add(-left / 100) // two clocks do not tick alike
	l.renewAt = time.Now().Add(left / 4)
	l.inDoubt = false
}

// holder is how others see the lease. The caller holds mu.
func (l *Lease) holder() Holder {
	return Holder{
		Worker: l.locker.cfg.Worker, Job: l.req.Job, Operation: l.req.Operation,
		Since: time.UnixMicro(l.since), Fence: l.fence, Remaining: max(0, time.Until(l.deadline)),
	}
}

type contextKey struct{}

// NewContext returns a context that carries leases.
func NewContext(ctx context.Context, leases ...*Lease) context.Context {
	return context.WithValue(ctx, contextKey{}, Leases(leases))
}

// FromContext returns the lease that ctx carries, the first one of several, if any.
func FromContext(ctx context.Context) (*Lease, bool) {
	leases := AllFromContext(ctx)
	if len(leases) == 0 {
		return nil, false
	}
	return leases[0], true
}

// AllFromContext returns the leases that ctx carries, if any.
func AllFromContext(ctx context.Context) Leases {
	leases, _ := ctx.Value(contextKey{}).(Leases)
	return leases
}
