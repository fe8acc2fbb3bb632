package notify

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"time"

	"lockstep/events"
	"lockstep/internal/watch"
)

// idle is for how long a process that has nothing to send does not look: others feed too.
const idle = time.Second

// The reasons of dead letters.
const (
	reasonGone   = "gone"
	reasonUsedUp = "attempts used up"
	reasonBad    = "malformed"
)

var errLate = errors.New("it took too long to look up where to send it")

// flight is what a process is posting. It belongs to one goroutine.
type flight struct {
	posts int
	busy  map[string]int       // apps, and how many of the posts are to them
	slow  map[string]time.Time // apps that took too long the last time, and when that was
}

// For so long an app is known to be slow, unless it is quick before. Those that are not asked any more are forgotten.
const slowFor = time.Hour

func (f *flight) begin(app string) {
	f.posts++
	f.busy[app]++
}

func (f *flight) end(l landing) {
	f.posts--
	if f.busy[l.app]--; f.busy[l.app] == 0 {
		delete(f.busy, l.app)
	}
	switch {
	case !l.asked:
	case l.slow:
		f.slow[l.app] = time.Now()
	default:
		delete(f.slow, l.app)
	}
}

// landing is the end of a post.
type landing struct {
	app         string
	asked, slow bool // whether the app was asked, and took a third of the time that it has, or more
}

// send claims what is due and posts it, until ctx is done and nothing is in flight any more.
func (n *Notifier) send(ctx context.Context) {
	posting, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	f := flight{busy: map[string]int{}, slow: map[string]time.Time{}}
	landed := make(chan landing)
	for ctx.Err() == nil {
		wait := idle
		if f.posts < n.cfg.Total {
			maps.DeleteFunc(f.slow, func(_ string, at time.Time) bool { return time.Since(at) > slowFor })
			claims, next, err := n.outbox.claim(ctx, f)
			n.sending.report(ctx, err)
			for _, c := range claims {
				f.begin(c.app)
				go func() { landed <- n.deliver(posting, c) }()
			}
			if next > 0 {
				wait = min(next, idle)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case l := <-landed:
			f.end(l)
		case <-n.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	defer time.AfterFunc(n.cfg.Grace, stop).Stop()
	for f.posts > 0 {
		f.end(<-landed)
	}
}

// deliver sends one notification and notes what came of it.
func (n *Notifier) deliver(ctx context.Context, c claim) (l landing) {
	l.app = c.app
	ctx, end := n.trace(ctx, c)
	began := time.Now()
	outcome, s, err := n.attempt(ctx, c)
	end(outcome, err)
	took := time.Since(began)
	l.asked, l.slow = outcome != "", took >= n.cfg.Timeout/3
	log := n.cfg.Log.With("app", c.app, "repo", c.item.Repo, "id", c.item.ID, "type", c.item.Type, "attempt", c.failed+1, "took", took)
	if err != nil {
		s.err = err.Error()
	}
	settled := n.settle(context.WithoutCancel(ctx), c, s)
	switch {
	case settled != nil:
		log.WarnContext(ctx, "what came of a notification cannot be noted: it is sent again", "outcome", outcome, "error", settled)
		return l
	case outcome == "":
		log.DebugContext(ctx, "notification given back", "error", err)
		return l
	case outcome == OutcomeDelivered:
		log.DebugContext(ctx, "app notified")
	case outcome == OutcomeUnwatched:
		log.InfoContext(ctx, "notification dropped: the app does not watch the repository any more, or does not want to be told")
	case outcome == OutcomeFailed:
		log.WarnContext(ctx, "app cannot be notified; it is tried again", "error", err, "in", s.delay)
	default:
		log.ErrorContext(ctx, "notification given up; see lockstep dead ls", "reason", s.reason, "error", err)
	}
	n.cfg.Observe(outcome, took)
	return l
}

// attempt tries to send. The outcome "" is that it could not be tried, or not to the end.
func (n *Notifier) attempt(ctx context.Context, c claim) (outcome string, s settlement, err error) {
	if c.newer && n.recent(c.item.Entry) {
		return "", settlement{what: isBack, delay: idle}, c.unreadable
	}
	if c.unreadable != nil { // another version wrote it
		return OutcomeGivenUp, settlement{what: isDead, reason: reasonBad}, c.unreadable
	}
	// A third of the claim is for this, one for the post and one to note what came of it.
	ends := c.taken.Add(n.cfg.claim / 3)
	looking, cancel := context.WithDeadline(ctx, ends)
	defer cancel()
	w, watched, err := n.find(looking, c.item.key())
	switch {
	case unsound(err):
		outcome, s = n.failed(c, 0)
		return outcome, s, err
	case err != nil: // Redis is at fault
		return "", settlement{what: isBack, delay: idle}, err
	case !watched:
		left, err := n.outbox.held(ctx, c)
		if err != nil || left > 0 {
			return "", settlement{what: isBack, delay: max(left, idle/10)}, err
		}
		return OutcomeUnwatched, settlement{what: isDone}, nil
	case w.NotifyURL == "":
		return OutcomeUnwatched, settlement{what: isDone}, nil
	case w.Silenced != "":
		return OutcomeGone, settlement{what: isDead, reason: reasonGone, attempts: c.failed}, errors.New("the watch is silenced: " + w.Silenced)
	}
	if !time.Now().Before(ends) { // another may be at it before the post ends
		return "", settlement{what: isBack}, errLate
	}
	asked, err := n.post(ctx, w, c.item)
	switch {
	case err == nil:
		return OutcomeDelivered, settlement{what: isDone}, nil
	case ctx.Err() != nil:
		return "", settlement{what: isBack}, err
	case errors.Is(err, errGone):
		return n.gone(ctx, c, w)
	}
	outcome, s = n.failed(c, asked)
	return outcome, s, err
}

// gone silences a watch that was answered 410, and is what becomes of the claim. A watch whose URL is another by now
// is not silenced: that one has not been asked.
func (n *Notifier) gone(ctx context.Context, c claim, asked watch.Watch) (outcome string, s settlement, err error) {
	w, watched, err := n.find(ctx, asked.Key())
	switch {
	case err != nil:
		return "", settlement{what: isBack, delay: idle}, err
	case !watched || w.NotifyURL != asked.NotifyURL:
		return "", settlement{what: isBack}, errGone
	}
	why := time.Now().UTC().Format(time.RFC3339) + " " + errGone.Error()
	if err := n.cfg.Registry.Silence(ctx, w, why); err != nil {
		return "", settlement{what: isBack, delay: idle}, err
	}
	return OutcomeGone, settlement{what: isDead, reason: reasonGone, attempts: c.failed + 1}, errGone
}

// failed is what becomes of a claim after one more failed attempt.
func (n *Notifier) failed(c claim, asked time.Duration) (outcome string, s settlement) {
	delay, more := again(n.cfg.Schedule, c.failed+1, rand.Float64(), asked)
	if !more {
		return OutcomeGivenUp, settlement{what: isDead, reason: reasonUsedUp, attempts: c.failed + 1}
	}
	return OutcomeFailed, settlement{what: isFailed, delay: delay}
}

// find returns the watch with that key, or the one that it has become since the repository was renamed.
func (n *Notifier) find(ctx context.Context, key watch.Key) (watch.Watch, bool, error) {
	const renames = 8 // of one repository while one notification waits
	for range renames {
		set, err := n.cfg.Registry.Of(ctx, key.Repo)
		if err != nil {
			return watch.Watch{}, false, err
		}
		for _, w := range set.Watches {
			if w.App == key.App && w.Ref == key.Ref {
				return w, true, nil
			}
		}
		to, err := n.outbox.movedTo(ctx, key.Repo)
		if err != nil || to == "" {
			return watch.Watch{}, false, err
		}
		if key.Repo, err = events.ParseRepoPath(to); err != nil {
			return watch.Watch{}, false, err
		}
	}
	return watch.Watch{}, false, nil
}

// settle tries for as long as the claim can be ours. Told to stop, the process waits for it no longer than for
// a few tries.
func (n *Notifier) settle(ctx context.Context, c claim, s settlement) (err error) {
	const tries = 5
	ctx, cancel := context.WithTimeout(ctx, n.cfg.claim/3)
	defer cancel()
	for i := range tries {
		if err = n.outbox.settle(ctx, c, s); err == nil || ctx.Err() != nil {
			return err
		}
		pause(ctx, time.Duration(i+1)*100*time.Millisecond)
	}
	return err
}
