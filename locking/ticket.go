package locking

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// ticket is a process's place in the queue of a key, or its attempt to get one. One goroutine
// pursues it; a message may settle it first.
type ticket struct {
	queue   *waitQueue
	token   string
	poked   chan struct{} // ask again: whom it is for has changed, or a message may be lost
	settled chan struct{} // closed when a waiter has the lease

	// Guarded by Locker.mu.
	requester *waiter // whom Redis was last told it is for
	idle      bool    // no call for it is on its way, and Redis has last said that it stands in line
	reading   reading // of Redis' clock, then
}

// newTicket makes a ticket for the first waiter of a line, nil if there is none. The caller holds mu.
func (l *Locker) newTicket(q *waitQueue) *ticket {
	if len(q.waiters) == 0 {
		return nil
	}
	t := &ticket{
		queue: q, token: l.newToken(), requester: q.waiters[0],
		poked: make(chan struct{}, 1), settled: make(chan struct{}),
	}
	l.tickets[t.token] = t
	return t
}

func (t *ticket) poke() {
	select {
	case t.poked <- struct{}{}:
	default:
	}
}

// pursue brings the ticket's line a lease, starting from what was last heard of it. It returns when
// a waiter has the lease, or when the ticket is withdrawn because nobody waits any more.
func (l *Locker) acquireFor(t *ticket, a answer, err error) {
	pause := retryPause
	for {
		wait := time.Duration(0)
		switch {
		case err != nil:
			l.noteFailure(t.queue, err)
			wait, pause = jitter(pause), min(2*pause, maxPause)
		case a.verdict == granted:
			if l.begin(t, a) {
				return
			}
		case a.verdict == held:
			pause = retryPause
			wait = l.noteHeld(t, a)
		}
		a, err = l.ask(t, wait)
		switch {
		case errors.Is(err, errSettled):
			return
		case errors.Is(err, errNobodyWaits):
			_, _ = l.releaseAndAdvance(l.ctx, t.queue, t.token)
			return
		}
	}
}

var (
	errSettled     = errors.New("a waiter has the lease")
	errNobodyWaits = errors.New("nobody waits")
)

// ask asks Redis after a while, or as soon as t is poked, on behalf of the waiter who is first by then.
func (l *Locker) ask(t *ticket, wait time.Duration) (answer, error) {
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-t.settled:
			return answer{}, errSettled
		case <-t.poked:
		case <-timer.C:
		}
	}
	l.mu.Lock()
	switch {
	case t.queue.ticket != t:
		l.mu.Unlock()
		return answer{}, errSettled
	case len(t.queue.waiters) == 0:
		l.mu.Unlock()
		return answer{}, errNobodyWaits
	}
	t.requester, t.idle = t.queue.waiters[0], false
	req := t.requester.req
	l.mu.Unlock()
	return l.callAcquire(l.ctx, t.token, req)
}

// begin gives a grant to the waiter it was made for, if that is still the first in line, and unless
// the grant may have run out on its way. A ticket that is settled has no need of it.
func (l *Locker) begin(t *ticket, a answer) bool {
	l.mu.Lock()
	defer l.unlockAndWarn(t.queue)
	return l.settle(t, a)
}

// settle is begin for a caller that holds mu.
func (l *Locker) settle(t *ticket, a answer) bool {
	q := t.queue
	switch {
	case q.ticket != t:
		return true
	case len(q.waiters) == 0 || q.waiters[0] != t.requester || time.Until(a.deadline()) < l.cfg.handover()/10:
		return false
	}
	w := q.waiters[0]
	q.waiters = q.waiters[1:]
	lease := l.newLease(q, w, t.token, a)
	q.lease, q.ticket, q.lastErr, q.holder = lease, nil, nil, lease.holder()
	close(t.settled)
	delete(l.tickets, t.token)
	l.leases[t.token] = lease
	l.planRenewal(lease.renewAt)
	w.done <- outcome{lease: lease}
	return true
}

// handed takes in a grant that came by message. When in doubt whether it has lapsed on its way, or
// whom it is for, it only has the ticket ask: Redis then says the same again, or better. So it does
// while a call for the ticket is on its way: were the lease returned before Redis gets that call, it
// would be granted again, to nobody.
func (l *Locker) onHandOver(t *ticket, a answer) {
	l.mu.Lock()
	a.reading = t.reading
	if latest := time.Now().Add(l.cfg.handover()); a.deadline().After(latest) {
		a.reading = reading{local: latest, redis: a.expires} // Redis' clock has jumped since
	}
	begun := t.idle && l.settle(t, a)
	l.unlockAndWarn(t.queue)
	if !begun {
		t.poke()
	}
}

// advance ends token's business in Redis and moves the line on: to the next waiter here, or away.
// It repeats itself for releaseTimeout while Redis fails; the line moves on in any case. Until then the
// token is known, so that the message of its grant, when it comes late, is not taken for a stray one.
func (l *Locker) releaseAndAdvance(ctx context.Context, q *waitQueue, token string) (answer, error) {
	l.mu.Lock()
	next := l.newTicket(q)
	l.mu.Unlock()

	begun := time.Now()
	a, err := l.callRelease(ctx, q.key, token, next)
	for pause := retryPause; err != nil && ctx.Err() == nil && time.Since(begun) < releaseTimeout; {
		pause = sleep(ctx, pause)
		if a, err = l.callRelease(ctx, q.key, token, next); a.verdict == gone {
			a.verdict = free // by the call before, for all we know
		}
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.tickets, token)
	delete(l.leases, token)
	if next != nil && l.ctx.Err() != nil { // Close has given up: nobody waits, here or for a goroutine
		delete(l.tickets, next.token)
		l.mu.Unlock()
		_, _ = l.callRelease(ctx, q.key, next.token, nil)
		l.mu.Lock()
		next = nil
	}
	l.startNext(q, next, a, err)
	return a, err
}

// moveOn has a line without a lease pursue its next ticket, of which heard is what Redis has last said.
// Without one it makes one for whoever has come meanwhile, or ends. The caller holds mu.
func (l *Locker) startNext(q *waitQueue, next *ticket, heard answer, failure error) {
	if next == nil {
		next, heard, failure = l.newTicket(q), answer{}, nil
	}
	q.lease, q.ticket = nil, next
	if next == nil {
		delete(l.queues, q.key)
		l.closeIfDrained()
		return
	}
	l.work.Go(func() { l.acquireFor(next, heard, failure) })
}

// sleep waits for about d, or until ctx ends, and returns the next, longer pause.
func sleep(ctx context.Context, d time.Duration) time.Duration {
	timer := time.NewTimer(jitter(d))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return min(2*d, maxPause)
}

// jitter spreads d over 0.9 to 1.2 of itself, so that processes do not ask in step.
func jitter(d time.Duration) time.Duration {
	return d*9/10 + rand.N(d*3/10+1)
}
