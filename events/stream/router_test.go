package stream_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

func TestWatermillRouter(t *testing.T) {
	t.Parallel()
	const total = 500
	server := redistest.Start(t)
	client := server.Client()
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Client: client, Reader: server.Client(), ConsumerGroup: group,
		NackResendSleep: time.Millisecond,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		t.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	router.AddMiddleware(middleware.Recoverer)
	done := make(chan struct{})
	var mu sync.Mutex
	attempts := make(map[string]int)
	finished := 0
	router.AddConsumerHandler("work", topic, subscriber, func(m *message.Message) error {
		d, ok := stream.DeliveryOf(m)
		if !ok {
			return errors.New("no delivery")
		}
		mu.Lock()
		attempts[m.UUID]++
		first := attempts[m.UUID] == 1
		mu.Unlock()
		var n int
		fmt.Sscanf(m.UUID, "m%d", &n)
		switch {
		case first && n%7 == 0:
			return errors.New("fails once")
		case first && n%11 == 0:
			panic("panics once")
		}
		out := stream.Output{Stream: results, Message: message.NewMessage(m.UUID, m.Payload)}
		if err := d.Settle(m.Context(), stream.Settlement{Outputs: []stream.Output{out}}); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if finished++; finished == total {
			close(done)
		}
		return nil
	})
	ran := make(chan error, 1)
	go func() { ran <- router.Run(context.Background()) }()
	<-router.Running()
	for i := range total {
		if err := publisher.Publish(topic, message.NewMessage(fmt.Sprintf("m%d", i), []byte("{}"))); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%d of %d finished", finished, total)
	}
	if err := router.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	clean(t, client)
	if n := length(t, client, results); n != total {
		t.Errorf("%d results; want %d", n, total)
	}
}

func TestClosingARouterLetsHandlersSettle(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{Client: client, Reader: server.Client(), ConsumerGroup: group}, nil)
	if err != nil {
		t.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	working, goOn := make(chan struct{}), make(chan struct{})
	router.AddConsumerHandler("work", topic, subscriber.Draining(), func(m *message.Message) error {
		close(working)
		<-goOn
		d, _ := stream.DeliveryOf(m)
		if err := m.Context().Err(); err != nil {
			t.Errorf("the message's context ended while its handler had time: %v", err)
		}
		return d.Settle(m.Context(), result())
	})
	ran, closed := make(chan error, 1), make(chan error, 1)
	go func() { ran <- router.Run(context.Background()) }()
	<-router.Running()
	publish(t, client, 1)
	<-working
	go func() { closed <- router.Close() }()
	eventually(t, "the router is closing", func() bool {
		select {
		case <-closed:
			t.Fatal("the router did not wait")
		default:
		}
		return length(t, client, topic) == 1
	})
	close(goOn)
	if err := errors.Join(<-closed, <-ran); err != nil {
		t.Fatal(err)
	}
	clean(t, client)
	if n := length(t, client, results); n != 1 {
		t.Errorf("%d results; want 1", n)
	}
}
