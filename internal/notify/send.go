package notify

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"lockstep/internal/redisx"
	"lockstep/internal/watch"
)

const idle = time.Second // longest time between checks for due items, because other processes queue items, too

// The reasons of dead letters.
const (
	reasonGone   = "gone"
	reasonUsedUp = "attempts used up"
	reasonBad    = "malformed"
)

var (
	errLate      = errors.New("reading the watch took too long")
	errNoCommand = errors.New("this notifier has no command for the app, and the watch no notify_url: " +
		"give all notifiers the same exec")
)

// send claims due items and posts them until ctx is done, then waits for posts in flight.
func (n *Notifier) send(ctx context.Context) {
	posting, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	posts, busy := 0, map[string]int{} // in flight, and those by app
	landed := make(chan string)        // the app of a post that has ended
	down := false
	land := func(app string) {
		posts--
		if busy[app]--; busy[app] == 0 {
			delete(busy, app)
		}
	}
	for ctx.Err() == nil {
		wait := idle
		if posts < n.cfg.total {
			claims, next, err := n.outbox.claim(ctx, busy, n.cfg.limits)
			n.report(ctx, &down, "notifications cannot be claimed", err)
			for _, c := range claims {
				posts++
				busy[c.app]++
				go func() { n.deliver(posting, c); landed <- c.app }()
			}
			if next > 0 {
				wait = min(next, idle)
			}
		}
		select {
		case app := <-landed:
			land(app)
		case <-n.wake:
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	defer time.AfterFunc(n.cfg.Grace, stop).Stop()
	for posts > 0 {
		land(<-landed)
	}
}

func (n *Notifier) deliver(ctx context.Context, c claim) {
	ctx, end := n.trace(ctx, c)
	began := time.Now()
	outcome, s, err := n.attempt(ctx, c)
	end(outcome, err)
	took := time.Since(began)
	log := n.cfg.Log.With("app", c.app, "repo", c.item.Repo, "id", c.item.ID, "type", c.item.Type,
		"attempt", c.failed+1, "took", took)
	if err != nil {
		s.err = err.Error()
	}
	settled := n.settle(context.WithoutCancel(ctx), c, s)
	switch {
	case settled != nil:
		log.WarnContext(ctx, "notification outcome not recorded, will send again", "outcome", outcome, "error", settled)
		return
	case outcome == "":
		log.DebugContext(ctx, "notification returned to the outbox", "error", err)
		return
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
	case !watched, w.NotifyURL == "" && !runs && !c.item.Runs:
		return OutcomeUnwatched, settlement{what: isDone}, nil
	case w.NotifyURL == "" && !runs:
		outcome, s = n.failed(c, 0)
		return outcome, s, errNoCommand
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
	case errors.Is(err, errGone): // the next attempt sees the silenced watch, or another URL
		why := time.Now().UTC().Format(time.RFC3339) + " " + errGone.Error()
		silenced := n.cfg.Registry.Silence(ctx, w, why)
		if isRegistryFault(silenced) { // the watches are being moved
			outcome, s = n.failed(c, 0)
			return outcome, s, errors.Join(err, silenced)
		}
		return "", settlement{what: isBack, delay: idle}, errors.Join(err, silenced)
	}
	outcome, s = n.failed(c, retryAfter)
	return outcome, s, err
}

func (n *Notifier) failed(c claim, retryAfter time.Duration) (outcome string, s settlement) {
	delay, more := nextDelay(n.cfg.schedule, c.failed+1, rand.Float64(), retryAfter)
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
		if key.Repo, err = n.cfg.Registry.MovedTo(ctx, key.Repo); err != nil || key.Repo.IsZero() {
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
		if _, err = n.outbox.settle(ctx, c, s); err == nil || ctx.Err() != nil {
			return err
		}
		redisx.Pause(ctx, time.Duration(i+1)*100*time.Millisecond)
	}
	return err
}
