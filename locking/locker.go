package locking

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Locker acquires and renews the leases of one process. Use one Locker per process: its requests share a
// place in the queue. It is safe for concurrent use.
type Locker struct {
	cfg     Config
	id      string // prefix of the Locker's tokens
	channel string // receives its grants
	terms   []any  // constant arguments of its scripts
	contact *contact
	tokens  atomic.Uint64

	ctx         context.Context // background work; cancelled by Close
	cancel      context.CancelFunc
	work        sync.WaitGroup
	rescheduled chan struct{} // has a token if a renewal is due earlier than planned

	// mu guards the fields below, and the fields of queues, tickets and leases. It is never held during a call
	// of Redis, the log, the Observer or the caller.
	mu          sync.Mutex
	queues      map[string]*waitQueue
	tickets     map[string]*ticket // by token: tickets that may receive a grant
	leases      map[string]*Lease  // by token: leases to renew
	nextRenewal time.Time
	closed      bool
	drained     chan struct{} // closed once the Locker is closed and no queue is left
}

// New returns a Locker. Call Close to stop its goroutines.
func New(cfg Config) (*Locker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Locker{
		cfg: cfg, id: randomID(8), terms: scriptTerms(cfg), contact: newContact(cfg),
		rescheduled: make(chan struct{}, 1), drained: make(chan struct{}), queues: make(map[string]*waitQueue),
		tickets: make(map[string]*ticket), leases: make(map[string]*Lease),
	}
	l.channel = cfg.Prefix + "wake:" + l.id
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.work.Go(func() { l.listen(l.ctx) })
	l.work.Go(func() { l.keepRenewing(l.ctx) })
	return l, nil
}

// Acquire waits for the lease of req.Key, in order of arrival, for at most req.Wait. The caller must Release the lease.
// The lease's context derives from ctx, but the lease stays held after ctx is done, until it is released.
//
// Acquire returns a *TimeoutError, ErrHeld, ErrBadRequest, ErrClosed, ErrUnavailable or the cause of ctx's
// cancellation. When ctx is done it first waits up to 2 s for a pending call to Redis. A failed request leaves nothing
// behind in Redis.
func (l *Locker) Acquire(ctx context.Context, req Request) (*Lease, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	if req.Wait == 0 {
		req.Wait = l.cfg.Wait
	}
	req.Job, req.Operation = printable(req.Job), printable(req.Operation)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("lock %s: %w", req.Key, context.Cause(ctx))
	}
	began := time.Now()
	l.cfg.Observer.WaitBegan()
	lease, err := l.wait(ctx, req, began)
	waited := time.Since(began)
	l.cfg.Observer.WaitEnded(outcomeOf(err), waited)

	if timeout, ok := errors.AsType[*TimeoutError](err); ok {
		level := slog.LevelError
		if req.IfHeld == Yield { // nobody misses optional work
			level = slog.LevelDebug
		}
		l.cfg.Log.Log(ctx, level, "lock timeout", l.cfg.KeyName, req.Key, "job", req.Job, "waited", waited,
			"holder_job", timeout.Holder.Job, "holder_worker", timeout.Holder.Worker)
	}
	if err != nil {
		return nil, err
	}
	l.cfg.Log.DebugContext(ctx, "lock acquired", l.cfg.KeyName, req.Key, "job", req.Job, "fence", lease.fence,
		"waited", waited)
	return lease, nil
}

func (l *Locker) wait(ctx context.Context, req Request, began time.Time) (*Lease, error) {
	w := &waiter{ctx: ctx, req: req, done: make(chan outcome, 1)}
	opened, err := l.join(w)
	if err != nil {
		return nil, err
	}
	if opened != nil {
		l.open(ctx, opened, req)
	}
	select {
	case o := <-w.done: // without waiting
		return o.lease, o.err
	default:
	}
	if o := l.await(w, began); o != nil {
		return o.lease, o.err
	}
	return l.giveUp(w, began)
}

// await returns the outcome of w, or nil at the end of its patience. A timer in this goroutine warns of a long wait.
func (l *Locker) await(w *waiter, began time.Time) *outcome {
	timeout := time.NewTimer(w.req.Wait - time.Since(began))
	defer timeout.Stop()
	long := time.NewTimer(warnAfter)
	defer long.Stop()
	for {
		select {
		case o := <-w.done:
			return &o
		case <-long.C:
			if !l.warn(w, began) {
				long.Reset(warnAfter)
			}
		case <-timeout.C:
			return nil
		case <-w.ctx.Done():
			return nil
		}
	}
}

// giveUp withdraws w, whose time is up or whose context is done, unless its outcome has arrived meanwhile.
func (l *Locker) giveUp(w *waiter, began time.Time) (*Lease, error) {
	ctx, req := w.ctx, w.req
	holder, lastErr, left := l.leave(w)
	if !left { // the outcome arrived meanwhile
		o := <-w.done
		if o.lease == nil || ctx.Err() == nil {
			return o.lease, o.err
		}
		_ = o.lease.Release(ctx)
		return nil, fmt.Errorf("lock %s: %w", req.Key, context.Cause(ctx))
	}
	if errors.Is(lastErr, errNoAnswer) && errors.Is(ctx.Err(), context.Canceled) {
		lastErr = nil // Redis had no time to answer
	}
	switch {
	case ctx.Err() != nil && lastErr == nil:
		return nil, fmt.Errorf("lock %s: %w", req.Key, context.Cause(ctx))
	case ctx.Err() != nil:
		return nil, fmt.Errorf("lock %s: %w: %w: %w", req.Key, context.Cause(ctx), ErrUnavailable, lastErr)
	case lastErr != nil:
		return nil, fmt.Errorf("lock %s: %w: %w", req.Key, ErrUnavailable, lastErr)
	}
	return nil, &TimeoutError{Key: req.Key, Job: req.Job, Waited: time.Since(began), Holder: holder}
}

// open makes the first request for a new queue's ticket, and continues in the background if it is not granted.
func (l *Locker) open(ctx context.Context, t *ticket, req Request) {
	defer l.work.Done()
	if req.Wait < callTimeout {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, req.Wait)
		defer cancel()
	}
	a, err := l.callAcquire(ctx, t.token, req)
	switch {
	case err == nil && a.verdict == granted && l.begin(t, a):
		return
	case ctx.Err() != nil: // not a failure of Redis
		a, err = answer{}, nil
	}
	l.work.Go(func() { l.acquireFor(t, a, err) })
}

// Do runs fn while holding req.Key, and releases the lease when fn returns or panics. fn's context is the
// lease's, which is cancelled with cause ErrLost if the lease is lost. Do returns an error of Acquire or fn's
// error. If the lease was lost before fn returned, the error is ErrLost and wraps fn's error.
func (l *Locker) Do(ctx context.Context, req Request, fn func(ctx context.Context, lease *Lease) error) error {
	lease, err := l.Acquire(ctx, req)
	if err != nil {
		return err
	}
	defer func() { _ = lease.Release(ctx) }()
	err = fn(lease.Context(), lease)
	lost := lease.ended()
	switch {
	case lost == nil, errors.Is(lost, errReleased), errors.Is(err, lost):
		return err
	case err == nil:
		return fmt.Errorf("work on %s: %w", req.Key, lost)
	}
	return fmt.Errorf("work on %s: %w: %w", req.Key, lost, err)
}

// Close ends all waits with ErrClosed, rejects new requests, and waits until every lease has been released,
// renewing leases meanwhile. If ctx is done first, Close returns its error: the contexts of the remaining
// leases are cancelled with cause ErrClosed and renewal stops, but the leases are left to expire, because
// work under them may still be running.
func (l *Locker) Close(ctx context.Context) error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	for _, q := range l.queues {
		for _, w := range q.waiters {
			w.done <- outcome{err: fmt.Errorf("lock %s: %w", w.req.Key, ErrClosed)}
		}
		q.waiters = nil
		if q.ticket != nil {
			q.ticket.poke()
		}
	}
	if first {
		l.closeIfDrained()
	}
	l.mu.Unlock()

	var err error
	select {
	case <-l.drained:
	case <-ctx.Done():
		err = fmt.Errorf("close locker: some leases were not released: %w", context.Cause(ctx))
	}
	l.mu.Lock()
	l.cancel() // under mu, so that nothing is added to work after this
	l.mu.Unlock()
	l.work.Wait()

	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range l.leases {
		lease.end(ErrClosed)
	}
	return err
}

// closeIfDrained lets Close return once no queue is left. The caller holds mu.
func (l *Locker) closeIfDrained() {
	if l.closed && len(l.queues) == 0 {
		select {
		case <-l.drained:
		default:
			close(l.drained)
		}
	}
}
