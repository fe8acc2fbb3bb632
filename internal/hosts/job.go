package hosts

import (
	"context"
	"fmt"
	"slices"
	"time"

	"lockstep/events"
	"lockstep/internal/git"
	"lockstep/internal/git/wire"
)

const (
	good, limited = "good", "limited" // what to report of a target

	maxSilent = 3               // requests in a row of one job that a host leaves without an answer
	tooMany   = 3               // repositories without a good answer that make a fault the host's
	maxHosts  = 64              // of one job: a repository decides where some of its files are
	patience  = 2 * time.Second // how long a job without its lease waits in this process to ask Redis again
)

// Job is what one job has to do with hosts. It is safe for concurrent use.
type Job struct {
	l     *Limiter
	repo  string
	poll  bool
	turns map[Target]*turn // guarded by Limiter.mu
}

// turn is the right of a job to send requests to a target.
type turn struct {
	first    *place // that of Enter, or nil
	in       bool   // it may send requests unless the target is blocked
	shared   bool   // its repository is one of a few over all processes, after a block
	answered bool
	silent   int // requests in a row without an answer
}

func (j *Job) turn(t Target) *turn {
	if j.turns[t] == nil {
		j.turns[t] = &turn{}
	}
	return j.turns[t]
}

// Enter waits until the job may send its first request to a target. It is called before the lease is
// acquired. The place is kept for a second, so that a job that waits for its lease holds up nobody. The error
// is one of contention, with the delay after which to try again; if the host is the reason, it wraps a
// retryable fault.
func (j *Job) Enter(ctx context.Context, t Target) error {
	l, p := j.l, &place{job: j, target: t}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })()
	if err := j.wait(ctx, p); err != nil {
		return err
	}
	l.mu.Lock()
	j.turn(t).first = p
	l.mu.Unlock()
	time.AfterFunc(firstRequest, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !p.sent {
			l.release(p)
		}
	})
	return nil
}

// With returns the limiter of the job's requests with a credential.
func (j *Job) With(credential string) wire.Limiter { return limiter{j, credential} }

type limiter struct {
	job        *Job
	credential string
}

// Acquire implements [wire.Limiter].
func (a limiter) Acquire(ctx context.Context, name string) (done func(wire.Answer) bool, err error) {
	t, j, l := Target{name, a.credential}, a.job, a.job.l
	l.mu.Lock()
	own, p := j.turn(t), &place{job: j, target: t}
	if own.first != nil && !own.first.sent {
		p = own.first
	}
	p.sent = true
	silent, known := own.silent, len(j.turns)
	l.mu.Unlock()
	if known > maxHosts {
		return nil, git.Errorf(git.Permanent, git.ClassQuota, "the repository needs more than %d hosts", maxHosts)
	}
	if silent >= maxSilent {
		return nil, git.Errorf(git.Retryable, git.ClassNetwork, "%s did not answer %d requests in a row", name, silent)
	}
	if err := j.wait(ctx, p); err != nil {
		return nil, err
	}
	return func(answer wire.Answer) bool { return j.done(ctx, p, answer) }, nil
}

// wait waits for a turn, and then for a place.
func (j *Job) wait(ctx context.Context, p *place) error {
	l := j.l
	for asked := false; ; {
		l.mu.Lock()
		h, own, s := l.hostOf(p.target.Host), j.turn(p.target), l.shared[p.target]
		isPlaced := slices.Contains(h.places, p)
		if isPlaced && !s.isBlocked() && (asked || !own.shared || s.isFree()) {
			p.began = time.Now()
			l.mu.Unlock()
			return nil
		}
		if isPlaced {
			l.release(p)
		}
		room := unlimited
		if !p.sent || !own.in { // it may not cost its lease, nor room, to wait for itself
			room = l.room(h, j.poll)
		}
		if p.sent && room > 0 {
			room = unlimited
		}
		hasTurn := !s.isBlocked() && (asked || s.isFree() || p.sent && own.in && !own.shared)
		if hasTurn && (room > 0 || own.shared) {
			own.in = true
			h.enqueue(p)
			l.mu.Unlock()
			select {
			case <-p.ready:
				continue
			case <-ctx.Done():
				l.mu.Lock()
				l.release(p)
				l.mu.Unlock()
				return context.Cause(ctx)
			}
		}
		l.mu.Unlock()
		delay, err := j.ask(ctx, p, room)
		if err != nil {
			return err
		}
		asked = delay == 0
		if err := l.sleep(ctx, delay); err != nil {
			return err
		}
	}
}

// sleep waits in this process.
func (l *Limiter) sleep(ctx context.Context, d time.Duration) error {
	l.asleep.Add(1)
	defer l.asleep.Add(-1)
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// refused returns the error of a job that must wait elsewhere. The caller holds mu.
func (l *Limiter) refused(t Target, after time.Duration) error {
	s, reason, scope := l.shared[t], AtLimit, events.ScopeNone
	if s.allowed > 0 {
		reason = SlowStart
	}
	err := fmt.Errorf("requests to %s with credential %q must wait: %s", t.Host, t.Credential, reason)
	if s.isBlocked() {
		reason, scope = s.reason, events.ScopeHostCredential
		if t.Credential == "" {
			scope = events.ScopeHost
		}
		err = events.Errorf(events.Retryable, classes[reason], "requests to %s with credential %q must wait: %s until %s",
			t.Host, t.Credential, reason, s.until.UTC().Format(time.RFC3339))
	}
	l.cfg.Observe(t.Host, "", reason)
	return &events.Error{
		Disposition: events.Contention, Scope: scope, Class: events.ClassBusy, RetryAfter: after, Err: err,
	}
}

// done ends a request, and reports whether the host has limited it. Then Acquire decides whether the job waits, or
// returns with the place of its repository.
func (j *Job) done(ctx context.Context, p *place, a wire.Answer) (again bool) {
	l, t := j.l, p.target
	outcome, after := classify(a)
	l.cfg.Observe(t.Host, outcome, "")
	l.mu.Lock()
	now, s := time.Now(), l.shared[t]
	report, reason := j.learn(p, a, outcome, after)
	until := now.Add(max(after, time.Second))
	if report == limited && until.After(s.until) {
		s.until, s.reason = until, reason
		l.shared[t] = s
	}
	l.mu.Unlock()
	if report != "" {
		_, news, _ := j.call(context.WithoutCancel(ctx), t, report, after.Milliseconds(), now.Sub(p.began).Milliseconds(),
			string(reason), outcome == Refused) // then the repository comes back for its turn
		log := l.cfg.Log.With("host", t.Host, "credential", t.Credential)
		if news && report == limited {
			log.WarnContext(ctx, "host limited", "reason", string(reason), "until", until)
		} else if news {
			log.InfoContext(ctx, "host no longer limited")
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release(p) // not before all processes know of a block
	return outcome == Refused
}

// learn keeps what an answer says about the host, and returns what to report of the target: that it is limited, for a
// reason, or good, or "" for nothing.
func (j *Job) learn(p *place, a wire.Answer, outcome Outcome, after time.Duration) (report string, reason Reason) {
	now, h, own := time.Now(), j.l.hostOf(p.target.Host), j.turn(p.target)
	if a.Status != 0 || a.Latency > 0 || outcome == OK {
		h.replied, h.known[j.repo], own.answered, own.silent = now, now, true, 0
	}
	switch {
	case outcome == Refused, outcome == OK && after > 0: // nothing is left of its quota
		return limited, RateLimit
	case outcome == OK:
		h.good = now
		clear(h.failures)
		if j.l.shared[p.target].allowed > 0 {
			report = good
		}
	case outcome == Failed:
		reason = RateLimit
		if a.Status == 0 {
			own.silent++
			reason = NoAnswer
		} else if after == 0 {
			reason = ServerError
		}
		if h.fails(j.repo, p.began, a) {
			report = limited
		}
	}
	return report, reason
}

// fails keeps a failure, and reports whether it is the host's, not the repository's.
func (h *host) fails(repo string, began time.Time, a wire.Answer) bool {
	counts := len(h.known) == 0 || !h.known[repo].IsZero() // otherwise it answers others, but has never answered this one
	if a.Status == 0 {
		delete(h.known, repo)
	}
	if began.Before(h.good) { // it answers others
		return false
	}
	if counts && len(h.failures) < tooMany {
		h.failures[repo] = true
	}
	return a.Unreachable || len(h.failures) == tooMany
}

// Leave ends the job: what it was let in for is free again.
func (j *Job) Leave(ctx context.Context) {
	l := j.l
	var shared []Target
	l.mu.Lock()
	for t, own := range j.turns {
		if own.first != nil {
			l.release(own.first)
		}
		if own.shared { // otherwise it counts for 20 s
			shared = append(shared, t)
		}
	}
	l.mu.Unlock()
	for _, t := range shared {
		_, _, _ = j.call(context.WithoutCancel(ctx), t, "left")
	}
}
