package locking

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"
)

// ticket is a process' place in the queue of a key, or an attempt to get one. One goroutine runs acquireFor for
// it; a hand-over message may settle it first.
type ticket struct {
	queue *waitQueue
	token string
	poked chan struct{} // has a token if the requester has changed, a message may be lost, or a waiter has the lease

	// Guarded by Locker.mu.
	requester *waiter // the waiter that Redis has registered for the ticket
	idle      bool    // no call is in progress, and Redis last reported the ticket as queued
	reading   reading // Redis' clock at that time
	wanted    bool    // a request of another process waits for the lease that Redis has granted
}

// newTicket returns a ticket for the first waiter of q, or nil if there is none. The caller holds mu.
func (l *Locker) newTicket(q *waitQueue) *ticket {
	if len(q.waiters) == 0 {
		return nil
	}
	t := &ticket{
		queue: q, token: l.id + "." + strconv.FormatUint(l.tokens.Add(1), 36), requester: q.waiters[0],
		poked: make(chan struct{}, 1),
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

// acquireFor polls until the ticket's queue gets a lease, starting from Redis' last answer. It returns when a
// waiter has the lease, or when no waiter is left and the ticket is withdrawn.
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
		case a.verdict == late: // the answer corrects the clock
			l.cfg.Log.Debug("lock request was late, will retry", l.cfg.KeyName, t.queue.key)
			wait, pause = jitter(pause), min(2*pause, maxPause)
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
	errNobodyWaits = errors.New("no waiter is left")
)

// ask polls Redis for the first waiter, after wait or as soon as the ticket is poked.
func (l *Locker) ask(t *ticket, wait time.Duration) (answer, error) {
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
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

// begin passes a grant to its requester if the requester is still the first waiter and the grant cannot have
// expired meanwhile. It reports whether the ticket is settled.
func (l *Locker) begin(t *ticket, a answer) bool {
	l.mu.Lock()
	defer l.unlockAndLog(t.queue)
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
	if t.wanted || len(q.waiters) > 0 {
		lease.want()
	}
	q.lease, q.ticket, q.lastErr, q.holder = lease, nil, nil, lease.holder()
	t.poke()
	delete(l.tickets, t.token)
	l.leases[t.token] = lease
	l.planRenewal(lease.renewAt)
	w.done <- outcome{lease: lease}
	return true
}

// onHandOver handles a grant received by message. It only pokes the ticket if the grant may have expired or may be for
// another waiter: polling returns the same grant or a better one. It does the same while a call for the ticket is in
// progress, because that call could otherwise be granted a lease that is never used.
func (l *Locker) onHandOver(t *ticket, a answer) {
	l.mu.Lock()
	a.reading = t.reading
	if latest := time.Now().Add(l.cfg.handover()); a.deadline().After(latest) {
		a.reading = reading{local: latest, redis: a.expires} // Redis' clock has jumped
	}
	begun := t.idle && l.settle(t, a)
	l.unlockAndLog(t.queue)
	if !begun {
		t.poke()
	}
}

// releaseAndAdvance releases token in Redis and starts the queue's next ticket, if any. It retries for releaseTimeout
// while Redis fails, and advances in any case. Until then the token stays registered, so that a late message about
// its grant is not treated as a grant without a ticket.
func (l *Locker) releaseAndAdvance(ctx context.Context, q *waitQueue, token string) (answer, error) {
	l.mu.Lock()
	next := l.newTicket(q)
	l.mu.Unlock()

	begun := time.Now()
	a, err := l.callRelease(ctx, q.key, token, next)
	for pause := retryPause; err != nil && ctx.Err() == nil && time.Since(begun) < releaseTimeout; {
		pause = sleep(ctx, pause)
		if a, err = l.callRelease(ctx, q.key, token, next); a.verdict == gone {
			a.verdict = free // presumably released by the previous call
		}
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.tickets, token)
	delete(l.leases, token)
	if next != nil && l.ctx.Err() != nil { // Close has given up, so no request waits any more
		delete(l.tickets, next.token)
		l.mu.Unlock()
		_, _ = l.callRelease(ctx, q.key, next.token, nil)
		l.mu.Lock()
		next = nil
	}
	l.startNext(q, next, a, err)
	return a, err
}

// startNext runs the next ticket of a queue without a lease, starting from Redis' last answer. If next is nil it
// makes a ticket for a waiter that has arrived meanwhile, or removes the queue. The caller holds mu.
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

// sleep waits for about d or until ctx is done, and returns the next, longer pause.
func sleep(ctx context.Context, d time.Duration) time.Duration {
	timer := time.NewTimer(jitter(d))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return min(2*d, maxPause)
}

// jitter returns 0.9 to 1.2 times d, so that processes do not poll in step.
func jitter(d time.Duration) time.Duration {
	return d*9/10 + rand.N(d*3/10+1)
}
