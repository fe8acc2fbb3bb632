package app

import (
	"context"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

// Changes parked for an unavailable remote must not delay polls of other remotes.
func TestBacklogExcludesParkedChanges(t *testing.T) {
	ctx, client := context.Background(), redistest.StartReal(t).Client() // the embedded Redis reports no lag
	topic := events.DefaultNamespace.Changes()
	waiting := func() int { return proctest.Must(backlog(ctx, client, events.DefaultNamespace))(t) }
	if n := waiting(); n != 0 {
		t.Errorf("backlog %d before the stream exists, want 0", n)
	}
	subscriber := proctest.Must(stream.NewSubscriber(stream.SubscriberConfig{Client: client, Prefix: string(events.DefaultNamespace), ConsumerGroup: events.WorkersGroup}, nil))(t)
	messages := proctest.Must(subscriber.Subscribe(ctx, topic))(t)
	for range 3 {
		proctest.Must(0, PublishChange(ctx, client, events.DefaultNamespace, proctest.Must(events.NewChange(events.Change{URL: "https://example.com/acme/widgets.git"}))(t)))(t)
		msg := <-messages
		delivery, _ := stream.DeliveryOf(msg)
		proctest.Must(0, delivery.Nack(ctx, time.Hour, false))(t)
		msg.Ack()
	}
	if n := waiting(); n != 0 {
		t.Errorf("backlog %d, want 0: all are parked", n)
	}
	proctest.Must(0, subscriber.Close())(t)
	for range 3 {
		proctest.Must(0, PublishChange(ctx, client, events.DefaultNamespace, proctest.Must(events.NewChange(events.Change{URL: "https://example.com/acme/widgets.git"}))(t)))(t)
	}
	if n := waiting(); n != 3 {
		t.Errorf("backlog %d, want the 3 unread changes", n)
	}
}
