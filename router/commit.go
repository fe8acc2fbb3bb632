package router

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/locking"
)

// Commit is how a handler ends: it settles the message together with what came of it. Over
// Lockstep's own subscriber that is one atomic step, which happens only while the message's leases,
// if it has any, are all still held; over any other Pub/Sub, Commit returns the outputs for the route's
// publisher, and their delivery and the ack are two steps. Where nobody waits for the first lease it is given
// back in that step too: after Commit there is nothing left to do under it, unless its context says
// that it is still held. The outputs carry on the trace of the message's context, if it has one.
//
//	return router.Commit(msg, stream.Settlement{Outputs: …})
func Commit(msg *message.Message, what stream.Settlement) (produced []*message.Message, err error) {
	inject(msg.Context(), what.Outputs)
	delivery, ok := stream.DeliveryOf(msg)
	if !ok {
		produced = make([]*message.Message, 0, len(what.Outputs))
		for _, out := range what.Outputs {
			produced = append(produced, out.Message)
		}
		return produced, nil
	}
	ctx := msg.Context()
	settling := child(ctx, "settle")
	defer func() { end(settling, err) }()
	leases := locking.AllFromContext(ctx)
	if len(leases) == 0 {
		return nil, delivery.Settle(ctx, what)
	}
	lease := leases[0]
	guard := stream.Guard(lease.Guard())
	what.Guard = &guard
	for _, other := range leases[1:] {
		what.Also = append(what.Also, stream.Guard(other.Guard()))
	}
	if !lease.HasLocalWaiters() {
		what.OnRelease = lease.MarkReleased
	}
	err = delivery.Settle(ctx, what)
	if errors.Is(err, stream.ErrGuard) && leases.Confirm(ctx) == nil {
		// It had run out while Redis was away, nobody else has had it since, and now it is back.
		err = delivery.Settle(ctx, what)
	}
	if errors.Is(err, stream.ErrGuard) {
		return nil, events.Errorf(events.Contention, events.ClassStale, "settle: %w", err)
	}
	return nil, err
}
