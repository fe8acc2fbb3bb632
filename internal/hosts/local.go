package hosts

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	localFailures = 5                // consecutive failures that block a host while Redis is away
	localCircuit  = 5 * time.Second  // for how long
	localBlock    = 30 * time.Second // block of a credential if the host has not said how long
	forgetAfter   = time.Hour
	circuitMemory = 5 * time.Second // an open circuit is asked of Redis again after this time: another process may close it
)

// hostState is what this process knows of a host.
type hostState struct {
	inUse, polls int // permits of this process, including requests to Redis for one
	limit        int // last known limit over all processes; 0 if unknown
	failures     int // consecutive failures since Redis went away
	used         time.Time
	answered     time.Time // the last request of this process
	learned      time.Time // reason and until
	reason       Reason    // of the host's block
	until        time.Time
	credentials  map[string]time.Time // end of each credential's block
}

func (b *Budgets) hostLocked(host string) *hostState {
	h := b.hosts[host]
	if h == nil {
		h = &hostState{credentials: map[string]time.Time{}}
		b.hosts[host] = h
	}
	h.used = b.now()
	return h
}

// Blocked returns why and until when no request to host with the credential may be sent, or nil. It only reads local memory,
// and may return nil for a block that another process knows, or if this process learned of an open circuit over 5 s ago. The repository is not queued, so RetryAfter is the end of the
// block plus a random time as long as the block, from 1 s to 60 s.
func (b *Budgets) Blocked(host, credential string) *Limited {
	b.mu.Lock()
	l := b.blockedLocked(host, credential)
	b.mu.Unlock()
	if l != nil {
		left := l.Until.Sub(b.now())
		l.RetryAfter = left + rand.N(min(max(left, time.Second), time.Minute))
	}
	return l
}

func (b *Budgets) blockedLocked(host, credential string) *Limited {
	h := b.hosts[host]
	if h == nil {
		return nil
	}
	now := b.now()
	stale := h.reason == NoAnswer && now.Sub(h.learned) >= circuitMemory && !now.Before(b.awayUntil)
	if now.Before(h.until) && !stale {
		return &Limited{Host: host, Reason: h.reason, Until: h.until}
	}
	until, ok := h.credentials[credential]
	if ok && !now.Before(until) {
		delete(h.credentials, credential)
		ok = false
	}
	if !ok {
		return nil
	}
	return &Limited{Host: host, Credential: credential, Reason: RateLimit, Until: until}
}

// remember stores a reply of Redis.
func (b *Budgets) remember(host, credential string, r reply) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hostLocked(host)
	h.limit, h.failures, h.reason, h.until, h.learned = r.limit, 0, r.reason, r.until, b.now()
	if r.credentialBlocked.IsZero() {
		delete(h.credentials, credential)
	} else {
		h.credentials[credential] = r.credentialBlocked
	}
	if len(r.woken) > 0 {
		for _, w := range r.woken {
			b.woken = append(b.woken, woken{w, b.now().Add(reservedFor)})
		}
		b.signal()
	}
}

func (b *Budgets) away() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now().Before(b.awayUntil)
}

// noteRedis records whether a call succeeded, and logs when that changes.
func (b *Budgets) noteRedis(ctx context.Context, err error) {
	b.mu.Lock()
	before := !b.awayUntil.IsZero()
	b.awayUntil = time.Time{}
	if err != nil {
		b.awayUntil = b.now().Add(awayFor)
	}
	b.mu.Unlock()
	switch {
	case err != nil && !before:
		b.cfg.Log.WarnContext(ctx, "host limits not shared, redis failed", "error", err)
	case err == nil && before:
		b.cfg.Log.InfoContext(ctx, "host limits shared again")
	}
}

// enterLocally decides without Redis: this process may use its part of the last known limit.
func (b *Budgets) enterLocally(ctx context.Context, p *Permit) (*Permit, error) {
	req := p.req
	b.mu.Lock()
	h := b.hostLocked(req.Host)
	limit := h.limit
	if limit == 0 {
		limit = b.maximum(req.Host)
	}
	share := max(1, limit/b.processes)
	l := b.blockedLocked(req.Host, req.Credential)
	inUse, polls := h.inUse, h.polls // both include p
	b.mu.Unlock()
	short := time.Second + rand.N(2*time.Second)
	var refused *Limited
	switch {
	case ctx.Err() != nil:
		b.uncount(p)
		return nil, ctx.Err()
	case l != nil:
		refused = b.refused(req, l.Reason, l.Until, l.Until.Sub(b.now())+short)
	case inUse > share:
		refused = b.refused(req, AtLimit, time.Time{}, short)
	case req.Kind == Poll && polls > max(1, share/2):
		refused = b.refused(req, PollLimit, time.Time{}, short)
	default:
		return b.grant(p), nil
	}
	b.uncount(p)
	return nil, refused
}

// learnLocally applies an answer that Redis could not be told.
func (b *Budgets) learnLocally(req Request, r result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hostLocked(req.Host)
	switch r.outcome {
	case Succeeded:
		h.failures = 0
	case Refused:
		until := b.now().Add(localBlock)
		if r.retryAfter > 0 {
			until = b.now().Add(r.retryAfter)
		}
		h.credentials[req.Credential] = until
	case Failed:
		if h.failures++; h.failures >= localFailures {
			h.reason, h.until, h.learned = NoAnswer, b.now().Add(localCircuit), b.now()
		}
	}
}

// logEvent logs that a host or credential has become limited, or is no longer. Only the process whose request found out
// does so.
func (b *Budgets) logEvent(ctx context.Context, req Request, r reply) {
	switch event := r.verdict; event {
	case "answers":
		b.cfg.Log.InfoContext(ctx, "host no longer limited", "host", req.Host)
	case "accepts":
		b.cfg.Log.InfoContext(ctx, "host no longer limited", "host", req.Host, "credential", req.Credential)
	case string(RateLimit):
		b.cfg.Log.WarnContext(ctx, "host limited", "host", req.Host, "credential", req.Credential,
			"reason", event, "until", r.credentialBlocked, "waiting", r.waiting)
	case string(HostLimit), string(NoAnswer):
		b.cfg.Log.WarnContext(ctx, "host limited", "host", req.Host,
			"reason", event, "until", r.until, "waiting", r.waiting)
	}
}

// forget drops what is no longer needed.
func (b *Budgets) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for name, h := range b.hosts {
		for credential, until := range h.credentials {
			if !now.Before(until) {
				delete(h.credentials, credential)
			}
		}
		if h.inUse == 0 && len(h.credentials) == 0 && now.After(h.until) && now.Sub(h.used) > forgetAfter {
			delete(b.hosts, name)
		}
	}
}
