package hosts

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	pumpEvery   = 200 * time.Millisecond // while something is due
	waitEvery   = 500 * time.Millisecond // while something waits: a block may be lifted
	idleEvery   = 2 * time.Second
	processLife = 30 * time.Second // how long a silent process counts
	wakeBatch   = 256
	wakeAgain   = time.Second // pause between calls of Wake for a waiter without a parked change, but for the first
	maxWoken    = 10_000      // waiters kept for Wake, and for the queue; the rest have due times of their own
)

// Run wakes waiting repositories when permits become free, renews permits in use, and releases kept permits that expire,
// until ctx is done, which should be when no requests are left. Every process should run it once; any of them can wake the
// repositories of all.
func (b *Budgets) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var renewing sync.WaitGroup
	defer renewing.Wait()
	renewing.Go(func() { b.renewUntil(ctx) })
	var pumped time.Time
	next := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			b.wakeUp(context.WithoutCancel(ctx)) // their permits are reserved for a few seconds
			return
		case <-b.kick:
		case <-timer.C:
		}
		if b.takeWaiting() {
			next = min(next, pumpEvery)
		}
		if time.Since(pumped) >= next {
			next = b.pump(ctx)
			pumped = time.Now()
		}
		next = min(next, time.Since(pumped)+b.wakeUp(ctx))
		b.expireKept(ctx)
		timer.Reset(max(next-time.Since(pumped), 0))
	}
}

// takeWaiting reports whether a request has been refused since the last call.
func (b *Budgets) takeWaiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	waiting := b.waiting
	b.waiting = false
	return waiting
}

// pump ends lost permits, reserves free permits of the hosts that are due, and returns when to do so again.
func (b *Budgets) pump(ctx context.Context) time.Duration {
	keys := []string{b.dueKey(), b.processesKey(), b.seenKey()}
	reply, err := b.run(ctx, claimScript, keys,
		b.offset.Load(), b.cfg.Process, processLife.Milliseconds(), pumpEvery.Milliseconds())
	if err != nil || len(reply) < 2 {
		return idleEvery
	}
	b.mu.Lock()
	b.processes = max(1, int(number(reply[0])))
	b.mu.Unlock()
	b.endLost(ctx)
	if b.sendQueue(ctx) != nil {
		return idleEvery
	}
	for _, host := range reply[2:] {
		if _, err := b.call(ctx, pumpScript, decode(text(host)), ""); err != nil {
			return idleEvery
		}
	}
	next := time.Duration(number(reply[1])) * time.Millisecond
	if next < 0 {
		return idleEvery
	}
	return min(max(next, pumpEvery), waitEvery)
}

// expireKept releases kept permits whose job has not come back.
func (b *Budgets) expireKept(ctx context.Context) {
	now := b.now()
	var expired []*Permit
	b.mu.Lock()
	for p := range b.permits {
		if !p.expires.IsZero() && !now.Before(p.expires) {
			expired = append(expired, p)
		}
	}
	b.mu.Unlock()
	for _, p := range expired {
		p.release(ctx)
	}
}

// renewUntil renews permits until ctx is done. It does not wait for other calls, which may be slow.
func (b *Budgets) renewUntil(ctx context.Context) {
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			b.renew(ctx)
			b.forget()
		case <-ctx.Done():
			return
		}
	}
}

const renewBatch = 256 // permits per script call, which bounds how long it blocks Redis

// renew extends the leases of this process' permits.
func (b *Budgets) renew(ctx context.Context) {
	b.mu.Lock()
	permits := slices.Collect(maps.Keys(b.permits))
	b.mu.Unlock()
	for batch := range slices.Chunk(permits, renewBatch) {
		keys, args := make([]string, len(batch)), []any{b.offset.Load(), lease.Milliseconds()}
		for i, p := range batch {
			keys[i] = b.stateKey(p.req.Host)
			args = append(args, encode(p.req.Credential), p.token)
		}
		if _, err := b.run(ctx, renewScript, keys, args...); err != nil {
			return // a permit outlives two failed renewals
		}
	}
}
