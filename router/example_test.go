package router_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/router"
)

// One message per name at a time, settled together with its output.
func ExampleWorker() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		panic(err)
	}
	if err := publisher.Publish("greeter:{0}:names", message.NewMessage("1", []byte("Ada"))); err != nil {
		panic(err)
	}

	greet := func(msg *message.Message) ([]*message.Message, error) {
		defer cancel() // after the first
		greeting := message.NewMessage(msg.UUID, []byte("Hello, "+string(msg.Payload)+"!"))
		return router.Commit(msg, stream.Settlement{Outputs: []stream.Output{{Stream: "greeter:{0}:greetings", Message: greeting}}})
	}
	worker := router.Worker{
		Client: client, Prefix: "greeter:{0}:", Group: "greeters", Log: slog.New(slog.DiscardHandler),
		Key:      func(msg *message.Message) string { return string(msg.Payload) },
		Handlers: map[string]message.HandlerFunc{"greeter:{0}:names": greet},
	}
	fmt.Println(worker.Run(ctx))
	for _, entry := range client.XRange(context.Background(), "greeter:{0}:greetings", "-", "+").Val() {
		fmt.Println(entry.Values["payload"])
	}
	// Output:
	// <nil>
	// Hello, Ada!
}
