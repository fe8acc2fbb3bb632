package stream_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events/stream"
	"lockstep/internal/redisx"
)

// One message in, one out, and the state that goes with it: all of it, or nothing.
func ExampleDelivery_Settle() {
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
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Redis: client, Reader: redis.Open(), Prefix: "shop:{0}:", Group: "indexer",
	})
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
