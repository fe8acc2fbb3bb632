package stream_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
)

// startRedis returns a client of a Redis in this process, and what stops it.
func startRedis() (client *redis.Client, stop func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	client = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return client, func() {
		_ = client.Close()
		server.Close()
	}
}

// One message in, one message out and a state update, all in one atomic step.
func ExampleDelivery_Settle() {
	client, stop := startRedis()
	defer stop()

	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		panic(err)
	}
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Client: client, Prefix: "shop:{0}:", ConsumerGroup: "indexer",
	}, nil)
	if err != nil {
		panic(err)
	}
	defer subscriber.Close()

	ctx := context.Background()
	messages, err := subscriber.Subscribe(ctx, "shop:{0}:orders")
	if err != nil {
		panic(err)
	}
	if err := publisher.Publish("shop:{0}:orders", message.NewMessage("order-7", []byte(`{"item":"tea"}`))); err != nil {
		panic(err)
	}

	msg := <-messages
	delivery, _ := stream.DeliveryOf(msg)
	err = delivery.Settle(msg.Context(), stream.Settlement{
		Outputs: []stream.Output{{Stream: "shop:{0}:indexed", Message: message.NewMessage("indexed-7", msg.Payload)}},
		State:   []stream.HashUpdate{{Key: "shop:{0}:item:tea", Fields: map[string]string{"orders": "1"}}},
	})
	if err != nil {
		msg.Nack()
		return
	}
	msg.Ack()

	fmt.Println(client.XLen(ctx, "shop:{0}:indexed").Val(), client.HGet(ctx, "shop:{0}:item:tea", "orders").Val())
	// Output: 1 1
}

// One message at a time, in order: Window 1. Other Watermill subscribers call it Concurrency: 1. A nacked message comes
// again after its delay, so that later messages may overtake it.
func ExampleSubscriberConfig_oneAtATime() {
	client, stop := startRedis()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		panic(err)
	}
	for i := range 4 {
		if err := publisher.Publish("shop:{0}:orders", message.NewMessage(fmt.Sprintf("order-%d", i), nil)); err != nil {
			panic(err)
		}
	}
	first := client.XRange(ctx, "shop:{0}:orders", "-", "+").Val()[0].ID

	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Client: client, Prefix: "shop:{0}:", ConsumerGroup: "ledger",
		Window:   1,
		OldestId: first, // a new group starts after this entry; "0" is the first entry, "$" the end of the stream
	}, nil)
	if err != nil {
		panic(err)
	}
	defer subscriber.Close()
	messages, err := subscriber.Subscribe(ctx, "shop:{0}:orders")
	if err != nil {
		panic(err)
	}
	for range 3 {
		msg := <-messages
		fmt.Println(msg.UUID)
		msg.Ack() // the next message is read after this
	}
	cancel() // ends the subscription at once, and closes the channel
	_, open := <-messages
	fmt.Println(open)
	// Output:
	// order-1
	// order-2
	// order-3
	// false
}
