package stream_test

import (
	"context"
	"fmt"
	"time"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/redisx"
)

// A publisher can wait for the result of its change.
func ExampleTracker_Wait() {
	redis, err := redisx.StartEmbedded()
	if err != nil {
		panic(err)
	}
	defer redis.Close()
	client := redis.Open()
	defer client.Close()

	publisher, err := stream.NewPublisher(stream.PublisherConfig{Redis: client})
	if err != nil {
		panic(err)
	}
	tracker, err := stream.NewTracker(stream.TrackerConfig{
		Redis: client, Changes: events.DefaultNamespace.Changes(), Group: "workers", Results: events.DefaultNamespace.Results(),
	})
	if err != nil {
		panic(err)
	}

	change, err := events.NewChange(events.Change{URL: "https://example.com/acme/widgets.git"})
	if err != nil {
		panic(err)
	}
	msg, err := stream.ChangeMessage(change)
	if err != nil {
		panic(err)
	}
	entry, err := publisher.Add(context.Background(), events.DefaultNamespace.Changes(), msg)
	if err != nil {
		panic(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	progress, err := tracker.Wait(ctx, entry) // no worker runs
	fmt.Println(progress.State, err != nil)
	// Output: queued true
}
