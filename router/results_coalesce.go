package router

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/locking"
)

// waiting is a result that waits for its turn.
type waiting struct {
	result  events.Result
	sibling stream.Sibling
}

// latest is the newest of the waiting results that supersede one; nil if there is none.
func (r *Results) latest(ctx context.Context, delivery *stream.Delivery, result events.Result) (*waiting, error) {
	siblings, err := delivery.Newest(ctx, siblingsAtOnce)
	if err != nil {
		return nil, err
	}
	var newest *waiting
	entry := delivery.Entry()
	for _, sibling := range siblings {
		if !events.EntryAfter(sibling.Entry, entry) {
			continue
		}
		if other, err := events.ParseResult(sibling.Message.Payload); err == nil && r.Supersedes(other, result) {
			newest, entry = &waiting{other, sibling}, sibling.Entry
		}
	}
	return newest, nil
}

// cover settles a waiting result that was handled, and those that it supersedes, while the key's lease
// is held. It looks no further once it meets none among many. Whatever is left, for this or any other
// reason, comes on its own turn.
func (r *Results) cover(msg *message.Message, delivery *stream.Delivery, lease *locking.Lease, handled *waiting) {
	ctx, log := msg.Context(), r.log().With("repo", handled.result.Repo.String(), "job", handled.result.ID)
	guard := stream.Guard(lease.Guard())
	batch := []stream.SiblingSettlement{{Sibling: handled.sibling}}
	for page, more := "", true; more; more = page != "" {
		siblings, next, err := delivery.Siblings(ctx, page, siblingsAtOnce)
		if err != nil {
			log.WarnContext(ctx, "cannot look for results that are superseded", "error", err)
			return
		}
		for _, sibling := range siblings {
			if r.supersedes(handled, sibling) {
				batch = append(batch, stream.SiblingSettlement{Sibling: sibling})
			}
		}
		if len(batch) == 0 && len(siblings) > 0 {
			return
		}
		n, err := delivery.SettleSiblings(ctx, &guard, batch)
		if n > 0 {
			log.DebugContext(ctx, "results settled along with another", "results", n)
		}
		if err != nil {
			log.WarnContext(ctx, "cannot settle results that are superseded", "error", err)
			return
		}
		page, batch = next, nil
	}
}

func (r *Results) supersedes(later *waiting, sibling stream.Sibling) bool {
	if !events.EntryAfter(later.sibling.Entry, sibling.Entry) {
		return false
	}
	earlier, err := events.ParseResult(sibling.Message.Payload)
	return err == nil && r.Supersedes(later.result, earlier)
}
