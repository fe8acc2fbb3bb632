package locking

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// line is what one process wants of one key. It exists while somebody here waits for the key, holds
// it, or is being withdrawn from its queue. At any time it has a lease out, or a ticket in pursuit
// of one, never both: so a lease is granted only after the one before it has returned.
type waitQueue struct {
	key     string
	waiters []*waiter // in order of arrival
	ticket  *ticket
	lease   *Lease
	holder  Holder // elsewhere, as last heard
	lastErr error  // why Redis has last not answered; nil once it has
}

// waiter is a call of Acquire that stands in line.
type waiter struct {
	ctx    context.Context
	req    Request
	done   chan outcome // takes one
	warned bool         // that it has to wait
}

type outcome struct {
	lease *Lease
	err   error
}

var errNoAnswer = errors.New("no answer yet")

// join puts w at the end of its line. When there is no line yet, join opens one and returns its
// ticket: the caller must ask for it, pursue it, and then tell l.work that it is done.
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
	withdrawing := q.lease == nil && len(q.waiters) == 0
	if w.req.IfHeld == Skip && !withdrawing {
		holder := l.holderOf(q)
		l.mu.Unlock()
		return nil, &HeldError{Key: w.req.Key, Holder: holder}
	}
	q.waiters = append(q.waiters, w)
	l.unlockAndWarn(q)
	return nil, nil
}

// leave takes w out of its line, unless it has had its outcome. It also says what w was waiting for.
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

// noteFailure takes in that Redis did not answer.
func (l *Locker) noteFailure(q *waitQueue, err error) {
	l.mu.Lock()
	fresh := q.lastErr == nil || errors.Is(q.lastErr, errNoAnswer)
	q.lastErr = err
	l.mu.Unlock()
	if fresh && l.ctx.Err() == nil {
		l.cfg.Log.Warn("lock cannot be asked for, still trying", "key", q.key, "error", err)
	}
}

// noteHeld takes in who holds the lease, and returns when to ask again. A waiter that will not wait
// has its outcome.
func (l *Locker) noteHeld(t *ticket, a answer) time.Duration {
	q := t.queue
	l.mu.Lock()
	t.reading, t.idle = a.reading, true
	q.holder, q.lastErr = a.holder, nil
	if len(q.waiters) > 0 && q.waiters[0] == t.requester && t.requester.req.IfHeld == Skip {
		q.waiters = slices.Delete(q.waiters, 0, 1)
		t.requester.done <- outcome{err: &HeldError{Key: q.key, Holder: a.holder}}
		l.mu.Unlock()
		return 0
	}
	l.unlockAndWarn(q)
	wait := jitter(pollEvery)
	switch {
	case a.rank == 0:
		wait = min(wait, a.holder.Remaining+5*time.Millisecond)
	case a.rank == 1: // so as to be there when the short lease of a first who is dead or stopped runs out
		wait = min(wait, jitter(l.cfg.handover()*4/5))
	}
	return wait
}

// holderOf is who holds the line's key, as far as is known here. The caller holds mu.
func (l *Locker) holderOf(q *waitQueue) Holder {
	if q.lease != nil {
		return q.lease.holder()
	}
	return q.holder
}

// unlockAndWarn releases mu, then warns once for every waiter of the line that it has to wait.
func (l *Locker) unlockAndWarn(q *waitQueue) {
	holder := l.holderOf(q)
	var waiting []*waiter
	if holder != (Holder{}) {
		first := len(q.waiters)
		for first > 0 && !q.waiters[first-1].warned { // those at its head have been told before
			first--
			q.waiters[first].warned = true
		}
		waiting = slices.Clone(q.waiters[first:])
	}
	l.mu.Unlock()
	for _, w := range waiting {
		l.cfg.Log.WarnContext(w.ctx, "waiting for lock", "key", q.key, "job", w.req.Job,
			"holder_job", holder.Job, "holder_worker", holder.Worker)
	}
}
