package hosts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"lockstep/events"
)

// Limited is the error of a request that must wait. Its change should be tried again after RetryAfter; if a permit becomes
// free before, Config.Wake is called with the repository.
type Limited struct {
	Host       string
	Credential string // "" if the reason applies to the whole host
	Reason     Reason
	Until      time.Time // end of the block by the local clock, or zero if it is not known
	RetryAfter time.Duration
}

// Error implements error.
func (l *Limited) Error() string {
	s := "requests to " + l.Host
	if l.Credential != "" {
		s += fmt.Sprintf(" with credential %q", l.Credential)
	}
	s += " must wait: " + string(l.Reason)
	if !l.Until.IsZero() {
		s += " until " + l.Until.UTC().Format(time.RFC3339)
	}
	return s
}

// Permit is the right to have one request in flight.
type Permit struct {
	b       *Budgets
	req     Request
	token   string
	granted time.Time

	// Guarded by Budgets.mu.
	asking  bool // Redis has not decided yet
	ended   bool
	good    *Answer   // a successful answer that is not reported yet, see Answer.More
	expires time.Time // of a kept permit
}

// Enter returns a permit for one request, or a *Limited error at once. In that case the repository is queued, unless the
// request is optional or the reason is AtTotal. Enter never fails because of Redis: it then applies the last known limits. The only other error is
// ctx's.
func (b *Budgets) Enter(ctx context.Context, req Request) (*Permit, error) {
	if p := b.resumeKept(ctx, req); p != nil {
		return p, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p, retryAfter := b.count(req)
	if p == nil {
		return nil, b.refused(req, AtTotal, time.Time{}, retryAfter)
	}
	r, err := b.call(ctx, enterScript, req.Host, req.Credential,
		string(req.Kind), req.Repo.Key(), p.token, lease.Milliseconds(), queues(req))
	if err != nil {
		granted, refused := b.enterLocally(ctx, p)
		if refused != nil && !errors.Is(err, errAway) {
			b.lose(p)
		}
		return granted, refused
	}
	reason := Reason(r.verdict)
	if reason == "" {
		return b.grant(p), nil
	}
	b.uncount(p)
	if req.Optional {
		return nil, b.refused(req, reason, time.Time{}, time.Second)
	}
	b.mu.Lock()
	b.waiting = true
	b.mu.Unlock()
	b.signal()
	until := r.until
	if reason == RateLimit {
		until = r.credentialBlocked
	}
	return nil, b.refused(req, reason, until, backstop(until.Sub(b.now())))
}

// backstop returns when to try a queued repository again that has not been woken, for the case that every process which
// could do so has crashed. left is the length of the block.
func backstop(left time.Duration) time.Duration {
	return max(left, 30*time.Second) + rand.N(time.Minute)
}

// queues returns the argument of the script that says whether to queue a request that may not be sent now.
func queues(req Request) int {
	if req.Optional {
		return 0
	}
	return 1
}

func (b *Budgets) refused(req Request, reason Reason, until time.Time, retryAfter time.Duration) *Limited {
	b.cfg.Observer.Refused(req.Host, reason)
	l := &Limited{Host: req.Host, Reason: reason, Until: until, RetryAfter: retryAfter}
	switch reason {
	case SlowStart, Quota, RateLimit:
		l.Credential = req.Credential
	}
	return l
}

// Done ends the permit and reports the answer. Later calls do nothing. It works even if ctx is cancelled.
func (p *Permit) Done(ctx context.Context, a Answer) {
	b := p.b
	result := a.classify(time.Now())
	b.mu.Lock()
	if p.ended || !p.expires.IsZero() {
		b.mu.Unlock()
		return
	}
	if a.More && result.outcome == Succeeded && result.quiet() {
		p.good, p.expires = &a, b.now().Add(keepFor)
		b.kept[p.req.Repo.Key()] = append(b.kept[p.req.Repo.Key()], p)
		b.hostLocked(p.req.Host).answered = b.now()
		b.mu.Unlock()
		b.cfg.Observer.Answered(p.req.Host, result.outcome)
		return
	}
	good := p.good
	b.endLocked(p)
	if result.outcome != Failed && result.outcome != Ignored {
		b.hostLocked(p.req.Host).answered = b.now()
	}
	b.mu.Unlock()
	b.cfg.Observer.Answered(p.req.Host, result.outcome)
	if good != nil && result.outcome != Succeeded {
		p.report(ctx, "", good.classify(time.Now()))
	}
	p.report(ctx, p.token, result)
}

// report sends a result to Redis. If that fails, it is applied to the local state, and pump ends the permit.
func (p *Permit) report(ctx context.Context, token string, r result) {
	b := p.b
	if r.outcome == Refused && !p.req.Optional { // its change will be parked
		b.mu.Lock()
		b.queueLocked(p.req)
		b.mu.Unlock()
	}
	known, err := b.call(context.WithoutCancel(ctx), doneScript, p.req.Host, p.req.Credential, token, string(r.outcome),
		r.latency.Milliseconds(), b.now().Sub(p.granted).Milliseconds(),
		r.retryAfter.Milliseconds(), r.remaining, r.quota, r.reset.Milliseconds(), p.req.Repo.Key())
	if err != nil {
		b.learnLocally(p.req, r)
		if token != "" {
			b.lose(p)
		}
		return
	}
	b.logEvent(ctx, p.req, known)
}

// Leave releases the permits that were kept for further requests of a repository's job, see Answer.More. It does nothing if
// there are none.
func (b *Budgets) Leave(ctx context.Context, repo events.RepoPath) {
	b.mu.Lock()
	kept := slices.Clone(b.kept[repo.Key()])
	b.mu.Unlock()
	for _, p := range kept {
		p.release(ctx)
	}
}

// release ends a kept permit, unless it has been resumed since.
func (p *Permit) release(ctx context.Context) {
	p.b.mu.Lock()
	if p.ended || p.expires.IsZero() {
		p.b.mu.Unlock()
		return
	}
	good := p.good
	p.b.endLocked(p)
	p.b.mu.Unlock()
	p.report(ctx, p.token, good.classify(time.Now()))
}

// resumeKept returns the permit kept for req, or nil if there is none. It releases the permit if the host has been blocked since.
func (b *Budgets) resumeKept(ctx context.Context, req Request) *Permit {
	b.mu.Lock()
	kept := b.kept[req.Repo.Key()]
	i := slices.IndexFunc(kept, func(p *Permit) bool { return p.req.Host == req.Host && p.req.Credential == req.Credential })
	if i < 0 {
		b.mu.Unlock()
		return nil
	}
	old := kept[i]
	if block, _ := b.blockLocked(req.Host, req.Credential); block.reason != "" {
		b.mu.Unlock()
		old.release(ctx)
		return nil
	}
	defer b.mu.Unlock()
	b.dropKeptLocked(old)
	delete(b.permits, old)
	old.ended = true
	p := &Permit{b: b, req: old.req, token: old.token, granted: b.now(), good: old.good}
	b.permits[p] = struct{}{}
	return p
}

func (b *Budgets) dropKeptLocked(p *Permit) {
	key := p.req.Repo.Key()
	b.kept[key] = slices.DeleteFunc(b.kept[key], func(other *Permit) bool { return other == p })
	if len(b.kept[key]) == 0 {
		delete(b.kept, key)
	}
}

// count adds a permit to the local counts. If the process has too many, it returns nil and when to try again.
func (b *Budgets) count(req Request) (p *Permit, retryAfter time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hostLocked(req.Host)
	if retryAfter = b.roomLocked(req.Host, h); retryAfter > 0 {
		return nil, retryAfter
	}
	b.lastToken++
	p = &Permit{b: b, req: req, token: b.tokenPrefix + strconv.FormatUint(b.lastToken, 36), granted: b.now(), asking: true}
	b.asking++
	b.permits[p] = struct{}{}
	h.inUse++
	if req.Kind == Poll {
		h.polls++
	}
	return p, 0
}

// uncount removes a permit that was not granted.
func (b *Budgets) uncount(p *Permit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endLocked(p)
}

// grant records that a counted permit was granted.
func (b *Budgets) grant(p *Permit) *Permit {
	b.mu.Lock()
	p.asking = false
	b.asking--
	b.mu.Unlock()
	b.cfg.Observer.Granted(p.req.Host)
	return p
}

func (b *Budgets) endLocked(p *Permit) {
	if p.asking {
		b.asking--
	}
	p.ended = true
	delete(b.permits, p)
	b.dropKeptLocked(p)
	h := b.hostLocked(p.req.Host)
	h.inUse--
	if p.req.Kind == Poll {
		h.polls--
	}
}
