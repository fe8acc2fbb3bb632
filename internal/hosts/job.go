package hosts

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/git"
	"lockstep/internal/git/wire"
)

const (
	maxSilent = 3  // requests in a row of one job that a host leaves without an answer
	tooMany   = 3  // repositories without a good answer that make a fault the host's
	repeats   = 20 // times that a job sends a request again that the host limits, under its lease
	maxHosts  = 64 // of one job: a repository decides where some of its files are
)

// Job is what one job has to do with hosts. It is safe for concurrent use.
type Job struct {
	l     *Limiter
	repo  string
	poll  bool
	token string

	// Guarded by Limiter.mu.
	turns    map[Target]*turn
	silent   map[string]int // requests in a row without an answer, by host
	sentAway bool           // it must wait elsewhere for one of them
}

// turn is the right of a job to send requests to a target.
type turn struct {
	since    time.Time // when its repository began to wait
	in       bool      // it may send requests unless the target is blocked
	shared   bool      // it is one of a few over all processes, after a block
	asked    bool      // Redis has let it in, which ended the place of its repository
	sent     bool
	answered bool
	refused  bool // the last request
	repeated int  // how often
}

func (j *Job) turn(t Target) *turn {
	if j.turns[t] == nil {
		j.turns[t] = &turn{since: time.Now()}
	}
	return j.turns[t]
}

// Enter waits until the job may send its first request to a target. It is called before the lease is
// acquired. The place is kept for a second, so that a job that waits for its lease holds up nobody. The error
// is one of contention, with the delay after which to try again; if the host is the reason, it wraps a
// retryable fault.
func (j *Job) Enter(ctx context.Context, t Target) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(j.l.ctx, func() { cancel(context.Cause(j.l.ctx)) })()
	return j.wait(ctx, t, &place{job: j})
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
	p, silent, known := &place{job: j, sent: true, steady: j.turn(t).answered}, j.silent[name], len(j.turns)
	maps.DeleteFunc(l.hostOf(name).places, func(p *place, _ bool) bool { return p.job == j && !p.sent })
	l.mu.Unlock()
	if known > maxHosts {
		return nil, git.Errorf(git.Permanent, git.ClassQuota, "the repository needs more than %d hosts", maxHosts)
	}
	if silent >= maxSilent {
		return nil, git.Errorf(git.Retryable, git.ClassNetwork, "%s did not answer %d requests in a row", name, silent)
	}
	if err := j.wait(ctx, t, p); err != nil {
		return nil, err
	}
	return func(answer wire.Answer) bool { return j.done(ctx, t, p, answer) }, nil
}

// wait waits for a turn, and then for a place.
func (j *Job) wait(ctx context.Context, t Target, p *place) error {
	l := j.l
	for asked := false; ; {
		l.mu.Lock()
		h, own, s := l.hostOf(t.Host), j.turn(t), l.sharedOf(t)
		room := l.room(h, j.poll)
		if p.sent && (own.in || room > 0) { // it may not cost its lease, nor room, to wait for itself
			room = unlimited
		}
		if asked || !s.isBlocked() && !own.shared && (own.in && p.sent || room > 0 && s.isFree()) {
			own.in = true
			w := &waiter{place: p, target: t, ready: make(chan bool, 1)}
			if !p.sent {
				w.since = own.since
			}
			l.enqueue(h, w)
			l.mu.Unlock()
			select {
			case ok := <-w.ready:
				if ok {
					return nil
				}
				asked = false
				continue
			case <-ctx.Done():
				l.leave(w)
				return context.Cause(ctx)
			}
		}
		l.mu.Unlock()
		delay, err := j.ask(ctx, t, room, p.sent)
		if err != nil {
			return err
		}
		if asked = delay == 0; asked {
			continue
		}
		if err := j.sleep(ctx, delay); err != nil {
			return err
		}
	}
}

// ask asks Redis whether the job may go on. The delay is above 0 if it should ask again then, because its turn is near.
func (j *Job) ask(ctx context.Context, t Target, room int, leased bool) (delay time.Duration, err error) {
	r, err := j.call(ctx, t, "ask", j.repo, room, rand.N(30_000))
	l := j.l
	l.mu.Lock()
	defer l.mu.Unlock()
	own, s := j.turn(t), l.sharedOf(t)
	if err != nil { // Redis is away, so this process keeps to the blocks that it knows
		if ctx.Err() != nil || !s.isBlocked() {
			return 0, context.Cause(ctx)
		}
		return 0, j.refused(t, min(time.Until(s.until), time.Minute)+rand.N(time.Second))
	}
	own.since = time.Now().Add(-max(r.age, time.Since(own.since)))
	own.shared = own.shared || r.mine
	own.asked = own.asked || r.delay == 0
	if r.delay == 0 || r.here && (own.shared || !leased && l.waiting[true]+l.waiting[false] < l.cfg.Window/4) {
		return r.delay, nil
	}
	if r.here {
		r.delay += 5 * time.Second
	}
	return 0, j.refused(t, r.delay)
}

// refused returns the error of a job that must wait elsewhere.
func (j *Job) refused(t Target, after time.Duration) error {
	s, reason, scope := j.l.sharedOf(t), AtLimit, events.ScopeNone
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
	j.sentAway = true
	j.l.cfg.Observe(t.Host, "", reason)
	return &events.Error{
		Disposition: events.Contention, Scope: scope, Class: events.ClassBusy, RetryAfter: after, Err: err,
	}
}

// sleep waits in this process.
func (j *Job) sleep(ctx context.Context, d time.Duration) error {
	l := j.l
	l.mu.Lock()
	l.waiting[j.poll]++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.waiting[j.poll]--
		l.mu.Unlock()
	}()
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leave ends a waiter, and its place if it has got one.
func (l *Limiter) leave(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hostOf(w.target.Host)
	if i := slices.Index(h.queue, w); i >= 0 {
		l.dequeue(h, i)
	}
	delete(h.places, w.place)
	l.admit(h)
}

// done ends a request, and reports whether it may be sent again: after a block that is short, by a job that
// was let in after an earlier one. Another job of the repository would only begin anew.
func (j *Job) done(ctx context.Context, t Target, p *place, a wire.Answer) (again bool) {
	l := j.l
	outcome, after := classify(a)
	l.cfg.Observe(t.Host, outcome, "")
	l.mu.Lock()
	now, h, own, s := time.Now(), l.hostOf(t.Host), j.turn(t), l.sharedOf(t)
	delete(h.places, p)
	if j.poll && !slices.ContainsFunc(h.queue, func(w *waiter) bool { return w.job == j }) {
		h.places[&place{job: j, began: now}] = true // for its next request: another poll would make more than half
	}
	own.sent, own.refused = true, outcome == Refused
	if a.Status != 0 || a.Latency > 0 || outcome == OK {
		h.replied, own.answered, j.silent[t.Host], h.known[j.repo] = now, true, 0, now
	}
	report, reason, keep := "", RateLimit, ""
	switch {
	case outcome == OK && after > 0: // nothing is left of its quota
		report = "limited"
	case outcome == OK:
		h.good = now
		clear(h.failures)
		if own.shared || s.allowed > 0 {
			report = "good"
		}
	case outcome == Refused:
		report, again = "limited", own.shared && after < time.Minute && own.repeated < repeats
		if own.repeated++; !again {
			keep = j.repo
		}
		if own.repeated > repeats { // the host may limit this repository alone: others try first
			own.since = now
		}
	case outcome == Failed:
		// otherwise it answers others, but has never answered this one
		counts := len(h.known) == 0 || !h.known[j.repo].IsZero()
		if a.Status == 0 {
			j.silent[t.Host]++
			delete(h.known, j.repo)
			h.silent, reason = now, NoAnswer
		} else if after == 0 {
			reason = ServerError
		}
		if p.began.Before(h.good) {
			break // it answers others
		}
		if counts && len(h.failures) < tooMany {
			h.failures[j.repo] = true
		}
		if a.Unreachable || len(h.failures) == tooMany {
			report = "limited"
		}
	}
	if report == "limited" {
		l.block(t, reason, now.Add(max(after, time.Second)))
	}
	l.admit(h)
	l.mu.Unlock()
	if report == "" {
		return again
	}
	r, err := j.call(context.WithoutCancel(ctx), t, report, keep, after.Milliseconds(), now.Sub(p.began).Milliseconds(),
		string(reason))
	if log := l.cfg.Log.With("host", t.Host, "credential", t.Credential); err == nil && r.news && report == "good" {
		log.InfoContext(ctx, "host no longer limited")
	} else if err == nil && r.news {
		log.WarnContext(ctx, "host limited", "reason", string(reason), "until", now.Add(r.left))
	}
	return again
}

// Leave ends the job: what it was let in for is free again. If it must wait elsewhere, its repository gets
// back the places that it has not used.
func (j *Job) Leave(ctx context.Context) {
	l, left := j.l, map[Target]string{} // to tell Redis, with the repository if it gets back its place
	l.mu.Lock()
	for t, own := range j.turns {
		switch {
		case own.asked && !own.sent && j.sentAway:
			left[t] = j.repo
		case own.shared:
			left[t] = "" // otherwise it counts for 20 s
		}
		h := l.hostOf(t.Host)
		maps.DeleteFunc(h.places, func(p *place, _ bool) bool { return p.job == j })
		if own.shared && own.answered && !own.refused {
			l.sharedOf(t).passed++
		}
		l.admit(h)
	}
	l.mu.Unlock()
	for t, repo := range left {
		_, _ = j.call(context.WithoutCancel(ctx), t, "left", repo)
	}
}

// Targets returns the targets that have answered the job.
func (j *Job) Targets() (targets []Target) {
	j.l.mu.Lock()
	defer j.l.mu.Unlock()
	for t, own := range j.turns {
		if own.answered {
			targets = append(targets, t)
		}
	}
	slices.SortFunc(targets, func(a, b Target) int { return strings.Compare(a.String(), b.String()) })
	return targets
}
