package router_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events/stream"
	"lockstep/internal/redisx"
	"lockstep/locking"
	"lockstep/router"
)

// A keyed handler: one message per name at a time, settled together with its output.
func Example() {
	server, err := redisx.StartEmbedded()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client, ctx, log := server.Open(), context.Background(), slog.New(slog.DiscardHandler)
	defer client.Close()
	const prefix = "greeter:{0}:"
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{Client: client, Reader: server.Open(), Prefix: prefix, ConsumerGroup: "greeters", Log: log}, nil)
	if err != nil {
		panic(err)
	}
	locker, err := locking.New(locking.Config{Redis: client, Prefix: prefix + "lock:", Log: log})
	if err != nil {
		panic(err)
	}
	defer locker.Close(ctx)

	done := make(chan struct{})
	route := router.Route{
		Name: "greet", Topic: prefix + "names", Subscriber: subscriber,
		Locker: locker, Request: func(msg *message.Message) ([]locking.Request, error) {
			return []locking.Request{{Key: string(msg.Payload), Job: msg.UUID}}, nil
		},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			defer close(done)
			greeting := message.NewMessage(msg.UUID, []byte("Hello, "+string(msg.Payload)+"!"))
			return router.Commit(msg, stream.Settlement{Outputs: []stream.Output{{Stream: prefix + "greetings", Message: greeting}}})
		},
	}
	r, err := router.New(router.Config{Routes: []router.Route{route}, Log: log})
	if err != nil {
		panic(err)
	}
	stopped := make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	go func() { stopped <- router.Run(running, r) }()

	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		panic(err)
	}
	if err := publisher.Publish(prefix+"names", message.NewMessage("1", []byte("Ada"))); err != nil {
		panic(err)
	}
	<-done
	stop()
	fmt.Println(<-stopped)
	for _, entry := range client.XRange(ctx, prefix+"greetings", "-", "+").Val() {
		fmt.Println(entry.Values["payload"])
	}
	// Output:
	// <nil>
	// Hello, Ada!
}
