package handlers

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/locking"
)

const siblingsPerStep = 100 // how many waiting changes are read, and settled, in one step

// Beside reports whether a change does not wait for the lock, for [stream.SubscriberConfig]: it is skipped if
// another job holds the repository, in this process too.
func (c *Changes) Beside(msg *message.Message) bool {
	change, err := parseOnce(msg)
	return err == nil && change.OnBusy == events.BusySkip
}

// Key returns a change's key for [stream.SubscriberConfig]: its repository, as for the lock.
func (c *Changes) Key(msg *message.Message) string {
	change, err := parseOnce(msg)
	if err != nil {
		return ""
	}
	return change.Repo.Key()
}

// answer is a settled change whose lease is still held, so that other changes may be settled with it.
type answer struct {
	change   events.Change
	delivery *stream.Delivery
	leases   locking.Leases
	covers   func(context.Context, Job) (Outcome, bool)
}

// settleCovered settles the waiting changes that an outcome also answers. It stops at the first page of
// siblings without any such change. The remaining changes are handled on their own turn.
func (c *Changes) settleCovered(ctx context.Context, a answer) {
	settled := 0
	for page, more := "", true; more; more = page != "" {
		siblings, next, err := a.delivery.Siblings(ctx, page, siblingsPerStep)
		if err != nil {
			c.Log.WarnContext(ctx, "cannot list waiting changes; they have their own turn",
				"repo", a.change.Repo.String(), "error", err)
			return
		}
		found, ok := c.settlePage(ctx, a, siblings, &settled)
		if !ok {
			return
		}
		if found == 0 && len(siblings) > 0 {
			break
		}
		page = next
	}
}

// settlePage settles the siblings that are covered, and then those that are covered now that these are
// settled. It adds the number of settled ones to settled, and returns how many it found and whether to
// continue.
func (c *Changes) settlePage(
	ctx context.Context, a answer, siblings []stream.Sibling, settled *int,
) (found int, ok bool) {
	for len(siblings) > 0 {
		batch, others := c.covered(ctx, a, siblings)
		if len(batch) == 0 {
			break
		}
		if !c.settleBatch(ctx, a, batch, settled) {
			return found, false
		}
		found, siblings = found+len(batch), others
	}
	return found, true
}

// settleBatch settles siblings, adds their number to settled, and reports whether to continue.
func (c *Changes) settleBatch(ctx context.Context, a answer, batch []stream.Sibling, settled *int) bool {
	log, guard := c.Log.With("repo", a.change.Repo.String()), stream.Guard(a.leases[0].Guard())
	n, err := a.delivery.SettleSiblings(ctx, &guard, batch)
	if n > 0 {
		*settled += n
		trace.SpanFromContext(ctx).SetAttributes(attrCoalesced.Int(*settled))
		log.InfoContext(ctx, "changes settled along with another", "job", a.change.ID, "changes", n)
	}
	if err != nil {
		log.WarnContext(ctx, "cannot settle waiting changes; they have their own turn", "error", err)
	}
	return err == nil
}

// covered returns the settlements of the siblings that are covered, and the other siblings.
func (c *Changes) covered(
	ctx context.Context, a answer, siblings []stream.Sibling,
) (batch, others []stream.Sibling) {
	for _, sibling := range siblings {
		change, err := parse(sibling.Message)
		if err != nil || change.Repo.Key() != a.change.Repo.Key() {
			continue
		}
		outcome, ok := a.covers(ctx, job(change, sibling.Entry, a.delivery, a.leases))
		if !ok {
			others = append(others, sibling)
			continue
		}
		outcome.Result.Source = c.Source
		s, err := c.settlement(change, outcome)
		if err != nil {
			continue
		}
		observed := c.coalesce(ctx, a, change, sibling, s.Outputs)
		sibling.Outputs, sibling.State = s.Outputs, s.State
		sibling.Settled = func() {
			observed()
			if outcome.Settled != nil {
				outcome.Settled()
			}
		}
		batch = append(batch, sibling)
	}
	return batch, others
}

// waitingJobs returns all siblings of a delivery, of a change of repo.
func waitingJobs(ctx context.Context, delivery *stream.Delivery, repo events.RepoPath) (jobs []Job, err error) {
	for page, more := "", true; more; more = page != "" {
		var siblings []stream.Sibling
		if siblings, page, err = delivery.Siblings(ctx, page, siblingsPerStep); err != nil {
			return nil, err
		}
		for _, sibling := range siblings {
			if change, err := parse(sibling.Message); err == nil && change.Repo.Key() == repo.Key() {
				jobs = append(jobs, job(change, sibling.Entry, delivery, nil))
			}
		}
	}
	return jobs, nil
}
