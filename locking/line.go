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
type line struct {
	key     string
	waiters []*waiter // in order of arrival
	ticket  *ticket
	lease   *Lease
	holder  Holder // elsewhere, as last heard
	trouble error  // why Redis has last not answered; nil once it has
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
	ln, exists := l.lines[w.req.Key]
	if !exists {
		ln = &line{key: w.req.Key, waiters: []*waiter{w}, trouble: errNoAnswer}
		ln.ticket = l.newTicket(ln)
		l.lines[ln.key] = ln
		l.work.Add(1)
		l.mu.Unlock()
		return ln.ticket, nil
	}
	withdrawing := ln.lease == nil && len(ln.waiters) == 0
	if w.req.IfHeld == Skip && !withdrawing {
		holder := l.holderOf(ln)
		l.mu.Unlock()
		return nil, &HeldError{Key: w.req.Key, Holder: holder}
	}
	ln.waiters = append(ln.waiters, w)
	l.unlockAndWarn(ln)
	return nil, nil
}

// leave takes w out of its line, unless it has had its outcome. It also says what w was waiting for.
func (l *Locker) leave(w *waiter) (holder Holder, trouble error, left bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln, ok := l.lines[w.req.Key]
	if !ok {
		return Holder{}, nil, false
	}
	i := slices.Index(ln.waiters, w)
	if i < 0 {
		return Holder{}, nil, false
	}
	ln.waiters = slices.Delete(ln.waiters, i, i+1)
	if i == 0 && ln.ticket != nil {
		ln.ticket.stir()
	}
	if ln.lease == nil {
		trouble = ln.trouble
	}
	return l.holderOf(ln), trouble, true
}

// noteTrouble takes in that Redis did not answer.
func (l *Locker) noteTrouble(ln *line, err error) {
	l.mu.Lock()
	fresh := ln.trouble == nil || errors.Is(ln.trouble, errNoAnswer)
	ln.trouble = err
	l.mu.Unlock()
	if fresh && l.ctx.Err() == nil {
		l.cfg.Log.Warn("lock cannot be asked for, still trying", "key", ln.key, "error", err)
	}
}

// noteHeld takes in who holds the lease, and returns when to ask again. A waiter that will not wait
// has its outcome.
func (l *Locker) noteHeld(t *ticket, a answer) time.Duration {
	ln := t.line
	l.mu.Lock()
	t.reading, t.idle = a.reading, true
	ln.holder, ln.trouble = a.holder, nil
	if len(ln.waiters) > 0 && ln.waiters[0] == t.names && t.names.req.IfHeld == Skip {
		ln.waiters = slices.Delete(ln.waiters, 0, 1)
		t.names.done <- outcome{err: &HeldError{Key: ln.key, Holder: a.holder}}
		l.mu.Unlock()
		return 0
	}
	l.unlockAndWarn(ln)
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
func (l *Locker) holderOf(ln *line) Holder {
	if ln.lease != nil {
		return ln.lease.holder()
	}
	return ln.holder
}

// unlockAndWarn releases mu, then warns once for every waiter of the line that it has to wait.
func (l *Locker) unlockAndWarn(ln *line) {
	holder := l.holderOf(ln)
	var waiting []*waiter
	if holder != (Holder{}) {
		first := len(ln.waiters)
		for first > 0 && !ln.waiters[first-1].warned { // those at its head have been told before
			first--
			ln.waiters[first].warned = true
		}
		waiting = slices.Clone(ln.waiters[first:])
	}
	l.mu.Unlock()
	for _, w := range waiting {
		l.cfg.Log.WarnContext(w.ctx, "waiting for lock", "key", ln.key, "job", w.req.Job,
			"holder_job", holder.Job, "holder_worker", holder.Worker)
	}
}
