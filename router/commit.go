package router

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
)

// Commit settles a message together with its outputs. A handler returns its result. With Lockstep's own
// subscriber this is one atomic step, which fails unless all of the message's leases are still held. If
// nothing waits for the first lease, the same step releases it: check the message's context before doing more
// work under it. With any other Pub/Sub, Commit returns the outputs for the route's publisher, and publishing
// and the ack are two steps. The outputs carry the trace of the message's context, if there is one.
//
//	return router.Commit(msg, stream.Settlement{Outputs: …})
func Commit(msg *message.Message, what stream.Settlement) (produced []*message.Message, err error) {
	Inject(msg.Context(), what.Outputs)
	delivery, ok := stream.DeliveryOf(msg)
	if !ok {
		produced = make([]*message.Message, 0, len(what.Outputs))
		for _, out := range what.Outputs {
			produced = append(produced, out.Message)
		}
		return produced, nil
	}
	ctx := msg.Context()
	span := StartSpan(ctx, "settle")
	defer func() { EndSpan(span, err) }()
	leases := Leases(msg)
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
		// The lease expired during a Redis outage, no other request acquired it, and Confirm has renewed it.
		err = delivery.Settle(ctx, what)
	}
	if errors.Is(err, stream.ErrGuard) {
		return nil, events.Errorf(events.Contention, events.ClassBusy, "settle: %w", err)
	}
	return nil, err
}
