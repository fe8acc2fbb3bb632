package locking

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// waitQueue holds this process' requests for one key, until the last is withdrawn or released. It has a lease or a
// ticket, never both, so a lease is granted only after the previous one has been released.
type waitQueue struct {
	key     string
	waiters []*waiter // in order of arrival
	ticket  *ticket
	lease   *Lease
	holder  Holder // holder in another process, as last reported
	lastErr error  // error of the last call to Redis; nil if it succeeded
}

// waiter is a waiting call of Acquire.
type waiter struct {
	ctx    context.Context
	req    Request
	done   chan outcome // has capacity for one outcome
	logged bool         // whether the wait was logged
}

type outcome struct {
	lease *Lease
	err   error
}

var errNoAnswer = errors.New("no answer yet")

// join appends w to the queue of its key. If that creates the queue, join returns its ticket, and the caller must
// request it, start acquireFor, and then call l.work.Done.
func (l *Locker) join(w *waiter) (*ticket, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, fmt.Errorf("lock %s: %w", w.req.Key, ErrClosed)
	}
	q, exists := l.queues[w.req.Key]
	if !exists {
		q = &waitQueue{key: w.req.Key, waiters: []*waiter{w}, lastErr: errNoAnswer}
		q.ticket = l.newTicket(q)
		l.queues[q.key] = q
		l.work.Add(1)
		l.mu.Unlock()
		return q.ticket, nil
	}
	if w.req.IfHeld != WaitInLine && q.refuses(w.req) {
		holder := l.holderOf(q)
		l.mu.Unlock()
		return nil, heldBy(w.req.Key, holder)
	}
	q.waiters = append(q.waiters, w)
	if q.lease != nil {
		q.lease.want()
	}
	l.unlockAndLog(q)
	return nil, nil
}

// refuses reports whether a request that does not wait in line is refused without asking Redis. The caller holds mu.
func (q *waitQueue) refuses(req Request) bool {
	inTheWay := func(other Request) bool { return req.IfHeld == Yield || other.IfHeld != Yield }
	return q.lease != nil && inTheWay(q.lease.req) || slices.ContainsFunc(q.waiters, func(w *waiter) bool {
		return inTheWay(w.req)
	})
}

// leave removes w from its queue, unless it already has an outcome. It also returns the queue's holder and last error.
func (l *Locker) leave(w *waiter) (holder Holder, lastErr error, left bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q, ok := l.queues[w.req.Key]
	if !ok {
		return Holder{}, nil, false
	}
	i := slices.Index(q.waiters, w)
	if i < 0 {
		return Holder{}, nil, false
	}
	q.waiters = slices.Delete(q.waiters, i, i+1)
	if i == 0 && q.ticket != nil {
		q.ticket.poke()
	}
	if q.lease == nil {
		lastErr = q.lastErr
	}
	return l.holderOf(q), lastErr, true
}

func (l *Locker) noteFailure(q *waitQueue, err error) {
	l.mu.Lock()
	fresh := q.lastErr == nil || errors.Is(q.lastErr, errNoAnswer)
	q.lastErr = err
	fresh = fresh && slices.ContainsFunc(q.waiters, func(w *waiter) bool { return w.req.IfHeld != Yield })
	l.mu.Unlock()
	if fresh && l.ctx.Err() == nil {
		l.cfg.Log.Warn("cannot request lock, will retry", l.cfg.KeyName, q.key, "error", err)
	}
}

// noteHeld records the holder, refuses a first waiter that does not wait for it, and returns when to poll again.
func (l *Locker) noteHeld(t *ticket, a answer) time.Duration {
	q := t.queue
	l.mu.Lock()
	t.reading, t.idle = a.reading, true
	q.holder, q.lastErr = a.holder, nil
	if len(q.waiters) > 0 && q.waiters[0] == t.requester && t.requester.req.IfHeld != WaitInLine {
		if a.holder.yields && t.requester.req.IfHeld == Skip {
			t.requester.req.IfHeld = WaitInLine
			l.mu.Unlock()
			return 0
		}
		q.waiters = slices.Delete(q.waiters, 0, 1)
		t.requester.done <- outcome{err: heldBy(q.key, a.holder)}
		l.mu.Unlock()
		return 0
	}
	l.unlockAndLog(q)
	wait := jitter(pollEvery)
	switch {
	case a.holder.Remaining == 0: // expired, but its holder may be about to renew it, see contact
		wait = min(wait, jitter(l.cfg.handover()/4))
	case a.rank == 0:
		wait = min(wait, a.holder.Remaining+5*time.Millisecond)
	case a.rank == 1: // in time for the end of the hand-over lease, if the first waiter is dead or stopped
		wait = min(wait, jitter(l.cfg.handover()*4/5))
	}
	return wait
}

// holderOf returns the last known holder of the queue's key. The caller holds mu.
func (l *Locker) holderOf(q *waitQueue) Holder {
	if q.lease != nil {
		return q.lease.holder()
	}
	return q.holder
}

// unlockAndLog releases mu, then logs each wait that has not been logged yet.
func (l *Locker) unlockAndLog(q *waitQueue) {
	holder := l.holderOf(q)
	var waiting []*waiter
	if holder != (Holder{}) {
		first := len(q.waiters)
		for first > 0 && !q.waiters[first-1].logged { // earlier waiters have been logged
			first--
			q.waiters[first].logged = true
		}
		waiting = slices.Clone(q.waiters[first:])
	}
	l.mu.Unlock()
	for _, w := range waiting {
		l.cfg.Log.DebugContext(w.ctx, "waiting for lock", l.cfg.KeyName, q.key, "job", w.req.Job,
			"holder_job", holder.Job, "holder_worker", holder.Worker)
	}
}

// warn logs that w has waited for long, unless the holder is unknown. It reports whether it did.
func (l *Locker) warn(w *waiter, began time.Time) bool {
	l.mu.Lock()
	q, ok := l.queues[w.req.Key]
	if !ok || !slices.Contains(q.waiters, w) { // its outcome has arrived
		l.mu.Unlock()
		return true
	}
	holder := l.holderOf(q)
	l.mu.Unlock()
	if holder == (Holder{}) {
		return false
	}
	l.cfg.Log.WarnContext(w.ctx, "still waiting for lock", l.cfg.KeyName, w.req.Key, "job", w.req.Job,
		"waited", time.Since(began), "holder_job", holder.Job, "holder_worker", holder.Worker)
	return true
}
