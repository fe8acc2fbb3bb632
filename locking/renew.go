package locking

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// keepRenewing renews all leases of the process every quarter lease until ctx is done. It sleeps while there are none.
func (l *Locker) keepRenewing(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.rescheduled:
		case <-timer.C:
		}
		due, next := l.renewals(time.Now())
		if len(due) > 0 {
			_ = l.renew(ctx, due) // leases that were not renewed are due again soon
			_, next = l.renewals(time.Now())
		}
		timer.Reset(time.Until(next))
	}
}

// renewals returns the leases to renew now, most urgent first, and the time of the next renewal. It includes
// leases due within half an interval, so that leases due soon are renewed together.
func (l *Locker) renewals(now time.Time) (due []*Lease, next time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	soon := now.Add(l.cfg.Lease / 8)
	next = now.Add(time.Hour)
	later := next // due time of the first lease that is not included
	for _, lease := range l.leases {
		if lease.ending != nil { // being released
			continue
		}
		if lease.renewAt.Before(next) {
			next = lease.renewAt
		}
		if lease.renewAt.Before(soon) {
			due = append(due, lease)
		} else if lease.renewAt.Before(later) {
			later = lease.renewAt
		}
	}
	l.nextRenewal = next
	if next.After(now) {
		return nil, next
	}
	l.nextRenewal = later
	slices.SortFunc(due, func(a, b *Lease) int { return a.deadline.Compare(b.deadline) })
	return due, next
}

// planRenewal makes sure that keepRenewing wakes up at t, even during a round. The caller holds mu.
func (l *Locker) planRenewal(t time.Time) {
	if !l.nextRenewal.IsZero() && !t.Before(l.nextRenewal) {
		return
	}
	l.nextRenewal = t
	select {
	case l.rescheduled <- struct{}{}:
	default:
	}
}

// renew renews leases in batches. After a failure, leases may be in doubt, and those not renewed are due again
// soon. It stops between batches if a new lease is due before the end of the round: the short lease of a
// hand-over cannot wait for thousands of others.
func (l *Locker) renew(ctx context.Context, leases []*Lease) error {
	for batch := range slices.Chunk(leases, renewalBatch) {
		if err := l.renewBatch(ctx, batch); err != nil {
			if ctx.Err() == nil {
				l.noteUnrenewed(leases, err)
			}
			return err
		}
		if len(l.rescheduled) > 0 {
			break
		}
	}
	return nil
}

// The replies of renew.lua.
const (
	replyLost     = 0
	replyRenewed  = 1
	replyUnknown  = 2
	replyReleased = 3
)

func (l *Locker) renewBatch(ctx context.Context, leases []*Lease) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.renewTimeout())
	defer cancel()
	keys := make([]string, 0, len(leases))
	argv := make([]any, 0, 1+2*len(leases))
	argv = append(argv, l.cfg.Lease.Microseconds())
	for _, lease := range leases {
		keys = append(keys, l.lockKey(lease.req.Key))
		argv = append(argv, lease.token, strconv.FormatUint(lease.fence, 10))
	}
	before := time.Now()
	replies, err := renewScript.Run(ctx, l.cfg.Redis, keys, argv...).Int64Slice()
	if err != nil {
		return fmt.Errorf("renew %d leases: %w", len(leases), err)
	}
	if len(replies) != len(leases) {
		return fmt.Errorf("renew %d leases: %d replies", len(leases), len(replies))
	}
	l.contact.note(time.Now(), 0)
	for i, lease := range leases {
		switch replies[i] {
		case replyRenewed:
			l.noteRenewed(lease, before.Add(l.cfg.Lease))
		case replyUnknown:
			if err := l.reclaim(ctx, lease); err != nil {
				return err
			}
		case replyLost:
			l.noteLost(lease, false)
		case replyReleased:
			l.noteReleased(lease)
		}
	}
	return nil
}

// reclaim restores a lease in a Redis that has lost its data. It gives up a lease that has not been renewed for ten
// leases, at least a minute, because the key of a lock that nobody has held for so long may have been deleted.
func (l *Locker) reclaim(ctx context.Context, lease *Lease) error {
	outOfTouch := max(10*l.cfg.Lease, time.Minute)
	if !lease.heldAt(time.Now().Add(l.cfg.Lease - outOfTouch)) {
		l.noteLost(lease, false)
		return nil
	}
	before := time.Now()
	mine, err := reclaimScript.Run(ctx, l.cfg.Redis, []string{l.lockKey(lease.req.Key)},
		lease.token, l.cfg.Lease.Microseconds(), strconv.FormatUint(lease.fence, 10), lease.since,
		l.channel, l.cfg.Worker, lease.req.Job, lease.req.Operation, lease.req.mark()).Int()
	switch {
	case err != nil:
		return fmt.Errorf("reclaim %s: %w", lease.req.Key, err)
	case mine == 1 && lease.ended() != nil: // released while Redis did not know the lease
		_, err := l.callRelease(ctx, lease.req.Key, lease.token, nil)
		return err
	case mine == 1:
		l.noteRenewed(lease, before.Add(l.cfg.Lease))
	default:
		l.noteLost(lease, false)
	}
	return nil
}

func (l *Locker) noteRenewed(lease *Lease, until time.Time) {
	l.mu.Lock()
	again := lease.inDoubt && lease.ending == nil
	lease.setHeldUntil(until)
	l.mu.Unlock()
	if again {
		l.cfg.Log.InfoContext(lease.ctx, "lease held again", l.cfg.KeyName, lease.req.Key, "job", lease.req.Job,
			"fence", lease.fence)
	}
}

// noteLost ends a lease that was lost to another request or released by force.
func (l *Locker) noteLost(lease *Lease, forced bool) {
	l.mu.Lock()
	first := lease.ending == nil
	lease.end(ErrLost)
	delete(l.leases, lease.token)
	l.mu.Unlock()
	if first {
		l.cfg.Observer.Lost(time.Since(lease.began), forced)
		l.cfg.Log.ErrorContext(lease.ctx, "lease lost", l.cfg.KeyName, lease.req.Key, "job", lease.req.Job,
			"fence", lease.fence, "forced", forced)
	}
}

// noteReleased ends a lease that a script released during the renewal; [Lease.MarkReleased] follows.
func (l *Locker) noteReleased(lease *Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease.end(errReleased)
	delete(l.leases, lease.token)
}

// noteUnrenewed schedules another renewal, and marks leases past their deadline as in doubt.
func (l *Locker) noteUnrenewed(leases []*Lease, err error) {
	now := time.Now()
	again := now.Add(jitter(min(l.cfg.Lease/8, 250*time.Millisecond)))
	var inDoubt []*Lease
	l.mu.Lock()
	for _, lease := range leases {
		if lease.renewAt.Before(again) {
			lease.renewAt = again
		}
		if !lease.inDoubt && lease.ending == nil && now.After(lease.deadline) {
			lease.inDoubt = true
			inDoubt = append(inDoubt, lease)
		}
	}
	l.mu.Unlock()
	for _, lease := range inDoubt {
		l.cfg.Observer.InDoubt()
		l.cfg.Log.WarnContext(lease.ctx, "lease in doubt",
			l.cfg.KeyName, lease.req.Key, "job", lease.req.Job, "fence", lease.fence, "error", err)
	}
}
