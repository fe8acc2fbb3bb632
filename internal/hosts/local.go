package hosts

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"time"
)

const (
	localFailures = 5                // consecutive failures that block a host while Redis is away
	localCircuit  = 5 * time.Second  // for how long
	localBlock    = 30 * time.Second // block of a credential if the host has not said how long
	forgetAfter   = time.Hour
	blockMemory   = 500 * time.Millisecond // Redis is asked again after this time, because a block may have ended early
)

// hostState is what this process knows of a host.
type hostState struct {
	inUse, polls int // permits of this process, including requests to Redis for one
	limit        int // last known limit over all processes; 0 if unknown
	failures     int // consecutive failures since Redis went away
	used         time.Time
	answered     time.Time // the last request of this process
	block        memory
	credentials  map[string]memory
}

// memory is what this process knows of a block.
type memory struct {
	reason  Reason
	until   time.Time
	learned time.Time
}

func (b *Budgets) hostLocked(host string) *hostState {
	h := b.hosts[host]
	if h == nil {
		h = &hostState{credentials: map[string]memory{}}
		b.hosts[host] = h
	}
	h.used = b.now()
	return h
}

// Blocked returns why and until when the request may not be sent, or nil. It only reads local memory: it returns nil for a
// block that only other processes know, and for one without news from Redis for half a second, unless Redis is away.
// [Budgets.Run] queues the repository soon.
func (b *Budgets) Blocked(req Request) *Limited {
	b.mu.Lock()
	defer b.mu.Unlock()
	block, credential := b.blockLocked(req.Host, req.Credential)
	now := b.now()
	if block.reason == "" || now.Sub(block.learned) >= blockMemory && !now.Before(b.awayUntil) {
		return nil
	}
	b.queueLocked(req)
	return &Limited{Host: req.Host, Credential: credential, Reason: block.reason, Until: block.until, RetryAfter: backstop(block.until.Sub(now))}
}

// blockLocked returns the block that applies to a request, and its credential unless it is the host's. Without a block, the
// reason is empty.
func (b *Budgets) blockLocked(host, credential string) (block memory, of string) {
	h := b.hosts[host]
	switch now := b.now(); {
	case h == nil:
	case now.Before(h.block.until):
		return h.block, ""
	case now.Before(h.credentials[credential].until):
		return h.credentials[credential], credential
	}
	return memory{}, ""
}

// remember stores a reply of Redis.
func (b *Budgets) remember(host, credential string, r reply) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hostLocked(host)
	now := b.now()
	h.limit, h.failures, h.block = r.limit, 0, memory{r.reason, r.until, now}
	if r.credentialBlocked.IsZero() {
		delete(h.credentials, credential)
	} else {
		h.credentials[credential] = memory{RateLimit, r.credentialBlocked, now}
	}
	if len(r.woken) > 0 {
		for _, w := range r.woken {
			b.woken = append(b.woken, woken{Waiter: w, host: host, next: now, ends: now.Add(reservedFor)})
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
	block, _ := b.blockLocked(req.Host, req.Credential)
	inUse, polls := h.inUse, h.polls // both include p
	b.mu.Unlock()
	short := time.Second + rand.N(2*time.Second)
	var refused *Limited
	switch {
	case ctx.Err() != nil:
		b.uncount(p)
		return nil, ctx.Err()
	case block.reason != "":
		refused = b.refused(req, block.reason, block.until, block.until.Sub(b.now())+short)
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

// learnLocally applies an answer that could not be reported to Redis.
func (b *Budgets) learnLocally(req Request, r result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hostLocked(req.Host)
	switch r.outcome {
	case Succeeded:
		h.failures = 0
	case Refused:
		until := b.now().Add(cmp.Or(r.retryAfter, localBlock))
		h.credentials[req.Credential] = memory{RateLimit, until, b.now()}
	case Failed:
		if h.failures++; h.failures >= localFailures {
			h.block = memory{NoAnswer, b.now().Add(localCircuit), b.now()}
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
		maps.DeleteFunc(h.credentials, func(_ string, block memory) bool { return !now.Before(block.until) })
		if h.inUse == 0 && len(h.credentials) == 0 && now.After(h.block.until) && now.Sub(h.used) > forgetAfter {
			delete(b.hosts, name)
		}
	}
}
