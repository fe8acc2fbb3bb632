package notify

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"time"

	"lockstep/events"
	"lockstep/internal/redisx"
	"lockstep/internal/watch"
)

const idle = time.Second // longest time between checks for due items, because other processes queue items, too

// The reasons of dead letters.
const (
	reasonGone   = "gone"
	reasonUsedUp = "attempts used up"
	reasonBad    = "malformed"

	reasonNoCommand = "no command"
)

const (
	othersTurn       = 10 * time.Second // until a run is claimed again that was claimed by a notifier without the command
	longestForOthers = 24 * time.Hour   // after the result, a run that no notifier has a command for is given up
)

var errLate = errors.New("reading the watch took too long")

// inFlight counts the posts of a process. It is not safe for concurrent use.
type inFlight struct {
	posts int
	busy  map[string]int       // posts by app
	slow  map[string]time.Time // slow apps, with the time of their last slow post
}

const slowFor = time.Hour // how long an app counts as slow, unless it is fast in the meantime

func (f *inFlight) begin(app string) {
	f.posts++
	f.busy[app]++
}

func (f *inFlight) end(l landing) {
	f.posts--
	if f.busy[l.app]--; f.busy[l.app] == 0 {
		delete(f.busy, l.app)
	}
	switch {
	case !l.attempted:
	case l.slow:
		f.slow[l.app] = time.Now()
	default:
		delete(f.slow, l.app)
	}
}

// landing is the end of a post.
type landing struct {
	app             string
	attempted, slow bool // whether the app was called, and took at least a third of the timeout
}

// send claims due items and posts them until ctx is done, then waits for posts in flight.
func (n *Notifier) send(ctx context.Context) {
	posting, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	f := inFlight{busy: map[string]int{}, slow: map[string]time.Time{}}
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
		select {
		case l := <-landed:
			f.end(l)
		case <-n.wake:
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	defer time.AfterFunc(n.cfg.Grace, stop).Stop()
	for f.posts > 0 {
		f.end(<-landed)
	}
}

func (n *Notifier) deliver(ctx context.Context, c claim) (l landing) {
	l.app = c.app
	ctx, end := n.trace(ctx, c)
	began := time.Now()
	outcome, s, err := n.attempt(ctx, c)
	end(outcome, err)
	took := time.Since(began)
	_, runs := n.cfg.Commands[c.app]
	l.attempted, l.slow = outcome != "", took >= n.cfg.Timeout/3 && !runs
	log := n.cfg.Log.With("app", c.app, "repo", c.item.Repo, "id", c.item.ID, "type", c.item.Type,
		"attempt", c.failed+1, "took", took)
	if err != nil {
		s.err = err.Error()
	}
	settled := n.settle(context.WithoutCancel(ctx), c, s)
	switch {
	case settled != nil:
		log.WarnContext(ctx, "notification outcome not recorded, will send again", "outcome", outcome, "error", settled)
		return l
	case outcome == "":
		log.DebugContext(ctx, "notification returned to the outbox", "error", err)
		return l
	case outcome == OutcomeDelivered:
		log.DebugContext(ctx, "app notified")
	case outcome == OutcomeUnwatched:
		log.InfoContext(ctx, "notification dropped, the watch, its notify_url or the tree was removed")
	case outcome == OutcomeFailed:
		log.WarnContext(ctx, "notification failed, will retry", "error", err, "in", s.delay)
	default:
		log.ErrorContext(ctx, "notification given up, see lockstep dead ls", "reason", s.reason, "error", err)
	}
	n.cfg.Observe(outcome, took)
	return l
}

// attempt tries to send. It returns the outcome "" if it made no attempt, or did not finish it.
func (n *Notifier) attempt(ctx context.Context, c claim) (outcome string, s settlement, err error) {
	if c.unreadable != nil {
		return OutcomeGivenUp, settlement{what: isDead, reason: reasonBad}, c.unreadable
	}
	command, runs := n.cfg.Commands[c.app]
	// The claim is divided into thirds: finding the watch, the post, and recording the outcome. That of a command is renewed.
	ends := c.since.Add(n.cfg.claim / 3)
	findCtx, cancel := context.WithDeadline(ctx, ends)
	defer cancel()
	w, watched, err := n.find(findCtx, c.item.key())
	switch {
	case isRegistryFault(err):
		outcome, s = n.failed(c, 0)
		return outcome, s, err
	case err != nil: // an error of Redis
		return "", settlement{what: isBack, delay: idle}, err
	case !watched:
		left, err := n.outbox.held(ctx, c)
		if err != nil || left > 0 {
			return "", settlement{what: isBack, delay: max(left, idle/10)}, err
		}
		return OutcomeUnwatched, settlement{what: isDone}, nil
	case w.NotifyURL == "" && !runs && c.item.Runs && time.Since(events.EntryTime(c.item.Entry)) > longestForOthers:
		return OutcomeGivenUp, settlement{what: isDead, reason: reasonNoCommand, attempts: c.failed}, errNoCommand
	case w.NotifyURL == "" && !runs && c.item.Runs:
		if _, warned := n.warned.LoadOrStore(c.app, true); !warned {
			n.cfg.Log.WarnContext(ctx, "runs wait for a notifier with a command for their app: this one has none, and "+
				"the watch no notify_url; give all notifiers the same exec", "app", c.app, "repo", c.item.Repo)
		}
		return "", settlement{what: isBack, delay: othersTurn}, errNoCommand
	case w.NotifyURL == "" && !runs:
		return OutcomeUnwatched, settlement{what: isDone}, nil
	case w.Silenced != "" && !runs:
		return OutcomeGone, settlement{what: isDead, reason: reasonGone, attempts: c.failed},
			errors.New("the watch is silenced: " + w.Silenced)
	}
	if !time.Now().Before(ends) { // the claim might expire during the post
		return "", settlement{what: isBack}, errLate
	}
	var retryAfter time.Duration
	if runs {
		err = n.run(ctx, w, c, command)
	} else {
		retryAfter, err = n.post(ctx, w, c.item)
	}
	switch {
	case err == nil:
		return OutcomeDelivered, settlement{what: isDone, reason: reasonAccepted}, nil
	case errors.Is(err, errNoTree):
		return OutcomeUnwatched, settlement{what: isDone}, nil
	case ctx.Err() != nil, errors.Is(err, errLost):
		return "", settlement{what: isBack}, err
	case errors.Is(err, errGone):
		return n.gone(ctx, c, w)
	}
	outcome, s = n.failed(c, retryAfter)
	return outcome, s, err
}

// gone silences a watch whose app answered 410 and returns the settlement. If the watch's URL has changed
// meanwhile, the item is returned to the outbox instead.
func (n *Notifier) gone(ctx context.Context, c claim, posted watch.Watch) (outcome string, s settlement, err error) {
	w, watched, err := n.find(ctx, posted.Key())
	switch {
	case err != nil:
		return "", settlement{what: isBack, delay: idle}, err
	case !watched || w.NotifyURL != posted.NotifyURL:
		return "", settlement{what: isBack}, errGone
	}
	why := time.Now().UTC().Format(time.RFC3339) + " " + errGone.Error()
	if err := n.cfg.Registry.Silence(ctx, w, why); err != nil {
		return "", settlement{what: isBack, delay: idle}, err
	}
	return OutcomeGone, settlement{what: isDead, reason: reasonGone, attempts: c.failed + 1}, errGone
}

func (n *Notifier) failed(c claim, retryAfter time.Duration) (outcome string, s settlement) {
	delay, more := nextDelay(n.cfg.Schedule, c.failed+1, rand.Float64(), retryAfter)
	if !more {
		return OutcomeGivenUp, settlement{what: isDead, reason: reasonUsedUp, attempts: c.failed + 1}
	}
	s = settlement{what: isFailed, delay: delay}
	if retryAfter > 0 && delay <= retryAfter { // else the schedule has decided
		s.reason = reasonAsked
	}
	return OutcomeFailed, s
}

// find returns the watch with that key, following renames of the repository.
func (n *Notifier) find(ctx context.Context, key watch.Key) (watch.Watch, bool, error) {
	const renames = 8 // maximum followed
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

// settle records an outcome. It retries a few times within the remaining third of the claim.
func (n *Notifier) settle(ctx context.Context, c claim, s settlement) (err error) {
	const tries = 5
	ctx, cancel := context.WithTimeout(ctx, n.cfg.claim/3)
	defer cancel()
	for i := range tries {
		if err = n.outbox.settle(ctx, c, s); err == nil || ctx.Err() != nil {
			return err
		}
		redisx.Pause(ctx, time.Duration(i+1)*100*time.Millisecond)
	}
	return err
}
