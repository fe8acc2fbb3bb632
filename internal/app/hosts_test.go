package app

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/handlers"
	"lockstep/internal/cells"
	"lockstep/internal/changes"
	"lockstep/internal/hosts"
	"lockstep/internal/redistest"
)

func TestWakeReachesTheCredentialAmongManyOfAnother(t *testing.T) {
	t.Parallel()
	const total, free = 20, 10
	ctx := context.Background()
	server := redistest.Start(t)
	client, namespace := server.Client(), events.DefaultNamespace
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Client: client, Reader: server.Client(), ConsumerGroup: events.WorkersGroup, Key: (&handlers.Changes{}).Key,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := subscriber.Subscribe(ctx, namespace.Changes())
	if err != nil {
		t.Fatal(err)
	}
	defer subscriber.Close()
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var key string
	for i := range total {
		change := events.Change{ID: fmt.Sprint("blocked-", i), URL: "https://forge.example/acme/widgets.git", Credential: "blocked"}
		if i == free {
			change.ID, change.Credential = "free", "free"
		}
		if change, err = events.NewChange(change); err != nil {
			t.Fatal(err)
		}
		msg, err := changes.Message(change)
		if err != nil {
			t.Fatal(err)
		}
		if err := publisher.Publish(namespace.Changes(), msg); err != nil {
			t.Fatal(err)
		}
		key = change.Repo.Key()
	}
	for range total {
		msg := <-messages
		delay.Message(msg, delay.For(time.Hour))
		msg.Metadata.Set(stream.MetadataUncounted, "true")
		msg.Nack()
	}
	for deadline := time.Now().Add(30 * time.Second); client.HLen(ctx, string(namespace)+"labels:changes:workers").Val() < total; {
		if time.Now().After(deadline) {
			t.Fatal("not all are parked")
		}
		time.Sleep(time.Millisecond)
	}
	woken, err := wakeChanges(ctx, subscriber, namespace, []hosts.Waiter{{Credential: "free", Key: key}, {Credential: "another", Key: key}})
	if err != nil || fmt.Sprint(woken) != "[true false]" {
		t.Fatalf("woken: %v, %v; want those of the first", woken, err)
	}
	if msg := <-messages; msg.UUID != "free" {
		t.Errorf("%s comes; want the change of the credential that has a permit", msg.UUID)
	} else {
		msg.Ack()
	}
	select {
	case msg := <-messages:
		t.Errorf("%s comes; want it to wait", msg.UUID)
		msg.Nack()
	case <-time.After(100 * time.Millisecond):
	}
}

// TestWakeReachesTheCellOfTheRepository wakes the change of one cell from a process of another.
func TestWakeReachesTheCellOfTheRepository(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	directory, err := cells.OpenOrNew(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"eu-1", "eu-2"} {
		if _, err := directory.Add(ctx, name, "", 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := directory.Settle(ctx, directory.Epoch()); err != nil {
		t.Fatal(err)
	}
	waiters, found := []hosts.Waiter{}, map[string]<-chan *message.Message{}
	for i := 0; len(waiters) < 2; i++ {
		change, err := events.NewChange(events.Change{URL: fmt.Sprintf("https://forge.example/acme/widgets-%d.git", i)})
		if err != nil {
			t.Fatal(err)
		}
		cell := directory.Place(change.Repo)
		if found[cell.Name] != nil {
			continue
		}
		subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
			Client: client, Reader: server.Client(), Prefix: string(cell.Prefix), ConsumerGroup: events.WorkersGroup,
			Key: (&handlers.Changes{}).Key,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer subscriber.Close()
		messages, err := subscriber.Subscribe(ctx, cell.Prefix.Changes())
		if err != nil {
			t.Fatal(err)
		}
		if err := PublishChange(ctx, client, cell.Prefix, change); err != nil {
			t.Fatal(err)
		}
		msg := <-messages
		delay.Message(msg, delay.For(time.Hour))
		msg.Metadata.Set(stream.MetadataUncounted, "true")
		msg.Nack()
		for deadline := time.Now().Add(30 * time.Second); client.HLen(ctx, string(cell.Prefix)+"labels:changes:workers").Val() < 1; {
			if time.Now().After(deadline) {
				t.Fatal("the change is not parked")
			}
			time.Sleep(time.Millisecond)
		}
		found[cell.Name], waiters = messages, append(waiters, hosts.Waiter{Key: change.Repo.Key()})
	}
	waker := cellWaker{
		directory: directory, subscribers: map[cells.Member]*stream.Subscriber{},
		config: stream.SubscriberConfig{Client: client, ConsumerGroup: events.WorkersGroup},
	}
	woken, err := waker.wake(ctx, append(waiters, hosts.Waiter{Key: "acme/unknown"}))
	if err != nil || fmt.Sprint(woken) != "[true true false]" {
		t.Fatalf("woken: %v, %v; want all that wait", woken, err)
	}
	for _, messages := range found {
		(<-messages).Ack()
	}
}
