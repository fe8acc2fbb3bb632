package locking

import (
	"sync"
	"time"
)

// contact records when Redis answered this process. After Redis has hung, or was unreachable, every lease looks
// expired, although the holders are alive and about to renew. So a process ends an expired lease of another only while
// its own contact with Redis is steady: without gaps longer than a limit, for a grace period in which a living
// holder would have renewed.
type contact struct {
	mu     sync.Mutex
	clock  reading   // the last; its local time was read after Redis' clock
	last   time.Time // last answer
	leases steady    // for leases, which are renewed every quarter
	handed steady    // for leases that were handed over and have not been renewed yet
}

// steady tracks contact without gaps.
type steady struct {
	gap   time.Duration // a longer gap ends steady contact
	grace time.Duration // how long contact must have been without gaps
	since time.Time     // end of the last gap
}

const (
	minGap   = 500 * time.Millisecond
	maxGrace = 5 * time.Second // enough to time out, reconnect and renew
)

func newContact(cfg Config) *contact {
	return &contact{
		leases: steady{gap: max(cfg.Lease/2, minGap), grace: min(cfg.Lease/2, maxGrace)},
		handed: steady{gap: max(cfg.handover(), minGap), grace: cfg.handover() / 2},
	}
}

// note records an answer that arrived at the given time. redis is Redis' clock in the answer, 0 if unknown.
func (c *contact) note(at time.Time, redis int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range []*steady{&c.leases, &c.handed} {
		if c.last.IsZero() || at.Sub(c.last) > s.gap {
			s.since = at
		}
	}
	if at.After(c.last) {
		c.last = at
	}
	if redis != 0 {
		c.clock = reading{local: at, redis: redis}
	}
}

// terms returns times of Redis' clock for a call that is given up at deadline: when the call is late, and
// until when it may end another's expired lease, or an expired lease that was only handed over. They are 0
// for never or, before the first answer, unknown.
func (c *contact) terms(now, deadline time.Time) (late, lease, handed int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.clock.redis == 0 {
		return 0, 0, 0
	}
	drift := now.Sub(c.clock.local) / 1000 // clocks differ by less than 0.1 %
	late = c.clock.at(deadline.Add(drift))
	return late, c.until(c.leases, now), c.until(c.handed, now)
}

// until returns the time of Redis' clock at which contact counts as interrupted unless Redis answers before,
// 0 if contact is not steady. The caller holds mu.
func (c *contact) until(s steady, now time.Time) int64 {
	if now.Sub(c.last) > s.gap || now.Sub(s.since) < s.grace {
		return 0
	}
	return c.clock.at(c.last.Add(s.gap))
}
