package main

import (
	"context"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

// What is parked until a remote is well again does not put off the polls of the others.
func TestPollsWaitForWorkersAndNotForRemotes(t *testing.T) {
	ctx, client := context.Background(), redistest.StartReal(t).Client() // the embedded one cannot tell what was read
	topic := events.DefaultNamespace.Changes()
	waiting := func() int { return must(backlog(ctx, client, events.DefaultNamespace))(t) }
	if n := waiting(); n != 0 {
		t.Errorf("%d wait before there is a stream", n)
	}
	subscriber := must(stream.NewSubscriber(stream.SubscriberConfig{Redis: client, Prefix: string(events.DefaultNamespace), Group: events.WorkersGroup}))(t)
	messages := must(subscriber.Subscribe(ctx, topic))(t)
	for range 3 {
		must(0, publishChange(ctx, client, events.DefaultNamespace, must(events.NewChange(events.Change{URL: "https://example.com/acme/widgets.git"}))(t)))(t)
		msg := <-messages
		delivery, _ := stream.DeliveryOf(msg)
		must(0, delivery.Nack(ctx, time.Hour, false))(t)
		msg.Ack()
	}
	if n := waiting(); n != 0 {
		t.Errorf("%d wait, want none: all are parked", n)
	}
	must(0, subscriber.Close())(t)
	for range 3 {
		must(0, publishChange(ctx, client, events.DefaultNamespace, must(events.NewChange(events.Change{URL: "https://example.com/acme/widgets.git"}))(t)))(t)
	}
	if n := waiting(); n != 3 {
		t.Errorf("%d wait, want those that nobody has read", n)
	}
}
