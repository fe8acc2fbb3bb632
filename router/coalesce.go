package router

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/locking"
)

// siblingsAtOnce is how many waiting changes are looked at, and settled, in one step.
const siblingsAtOnce = 100

// outcomeCoalesced is the outcome of a change that another's work has answered.
const outcomeCoalesced = "coalesced"

// Key is the key of a change, for [stream.SubscriberConfig]: that of its repository, as of its lock.
func (c *Changes) Key(msg *message.Message) string {
	change, err := read(msg)
	if err != nil {
		return ""
	}
	return change.Repo.Key()
}

// cover settles the changes that wait for their turn and that a settled outcome answers too, while
// their repository's lease is held. It looks no further once it meets none among many. Whatever is
// left, for this or any other reason, comes on its own turn.
func (c *Changes) cover(msg *message.Message, repo events.RepoPath, covers func(context.Context, events.Job) (events.Outcome, bool)) {
	ctx := msg.Context()
	delivery, ok := stream.DeliveryOf(msg)
	lease, held := locking.FromContext(ctx)
	if !ok || !held {
		return
	}
	guard := stream.Guard(lease.Guard())
	settled := 0
	for page, more := "", true; more; more = page != "" {
		siblings, next, err := delivery.Siblings(ctx, page, siblingsAtOnce)
		if err != nil {
			c.Log.WarnContext(ctx, "cannot look for changes that are answered too", "repo", repo.String(), "error", err)
			return
		}
		batch := c.covered(ctx, delivery, lease, repo, siblings, covers)
		if len(batch) == 0 && len(siblings) > 0 {
			return
		}
		n, err := delivery.SettleSiblings(ctx, &guard, batch)
		if n > 0 {
			settled += n
			tell(ctx, attrCoalesced.Int(settled))
			c.Log.InfoContext(ctx, "changes settled along with another", "repo", repo.String(), "job", msg.UUID, "changes", n)
		}
		for range n {
			c.observe(outcomeCoalesced, "")
		}
		if err != nil {
			c.Log.WarnContext(ctx, "cannot settle changes that are answered too", "repo", repo.String(), "error", err)
			return
		}
		page = next
	}
}

// covered picks the siblings that are answered, with what comes of them.
func (c *Changes) covered(ctx context.Context, delivery *stream.Delivery, lease *locking.Lease, repo events.RepoPath,
	siblings []stream.Sibling, covers func(context.Context, events.Job) (events.Outcome, bool),
) []stream.SiblingSettlement {
	var batch []stream.SiblingSettlement
	for _, sibling := range siblings {
		change, err := parse(sibling.Message)
		if err != nil || change.Repo.Key() != repo.Key() {
			continue
		}
		outcome, ok := covers(ctx, events.Job{
			Change: change, Entry: sibling.Entry, Attempt: 1, Fence: lease.Fence(), Confirm: lease.Confirm, Latest: delivery.Latest,
			Newest:   func(ctx context.Context) (string, error) { return newest(ctx, delivery, change) },
			Progress: func(events.Progress) {},
		})
		if !ok {
			continue
		}
		outcome.Result.Source = c.Source
		s, err := c.settlement(change, outcome)
		if err != nil {
			continue
		}
		span := along(ctx, c.Namespace.Changes(), sibling, s.Outputs)
		batch = append(batch, stream.SiblingSettlement{
			Sibling: sibling, Outputs: s.Outputs, State: s.State,
			Settled: func() {
				c.timed(queued(change, sibling.Entry).ended(outcomeCoalesced, time.Now()))
				span.End()
			},
		})
	}
	return batch
}

// newest is the newest of a delivery's siblings that announces a commit for the same ref, to the same app,
// as a change.
func newest(ctx context.Context, delivery *stream.Delivery, change events.Change) (string, error) {
	siblings, err := delivery.Newest(ctx, siblingsAtOnce)
	if err != nil {
		return "", err
	}
	last := ""
	for _, sibling := range siblings {
		other, err := parse(sibling.Message)
		if err != nil || other.Announced() == "" || other.App != change.App || other.Ref != change.Ref || other.Repo.Key() != change.Repo.Key() {
			continue
		}
		if last == "" || events.EntryAfter(sibling.Entry, last) {
			last = sibling.Entry
		}
	}
	return last, nil
}
