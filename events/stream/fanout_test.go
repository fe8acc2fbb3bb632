package stream_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

// everything subscribes without a consumer group.
func everything(t *testing.T, server *redistest.Server, change func(*stream.SubscriberConfig)) <-chan *message.Message {
	t.Helper()
	s := subscriber(t, server, "", func(c *stream.SubscriberConfig) {
		c.ConsumerGroup, c.NackResendSleep = "", stream.NoSleep
		if change != nil {
			change(c)
		}
	})
	messages, err := s.Subscribe(context.Background(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return messages
}

func TestFanOutDeliversEveryMessageToEachSubscription(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	publish(t, client, 2)
	first := entries(t, client, topic)[0].ID
	for name, tc := range map[string]struct {
		from string
		want []string
	}{
		"the end by default": {"", []string{"late-0", "late-1"}},
		"the first entry":    {"0", []string{"m0", "m1", "late-0", "late-1"}},
		"after an entry":     {first, []string{"m1", "late-0", "late-1"}},
	} {
		messages := everything(t, server, func(c *stream.SubscriberConfig) { c.FanOutOldestId = tc.from })
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, want := range tc.want {
				m := receive(t, messages)
				if _, ok := stream.DeliveryOf(m); m.UUID != want || ok {
					t.Errorf("%s comes, with a delivery: %v; want %s without one", m.UUID, ok, want)
				}
				m.Ack()
				<-m.Context().Done()
			}
		})
	}
	publishKeyed(t, client, "late", 2)
	if n := client.Exists(context.Background(), due, failures).Val() + int64(len(client.XInfoGroups(context.Background(), topic).Val())); n != 0 {
		t.Errorf("%d keys or groups; want none", n)
	}
}

func TestFanOutRepeatsANackedMessageBeforeTheNext(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	messages := everything(t, server, nil)
	client := server.Client()
	if err := client.XAdd(context.Background(), &redis.XAddArgs{Stream: topic, Values: []string{"_watermill_message_uuid", "no payload"}}).Err(); err != nil {
		t.Fatal(err)
	}
	publish(t, client, 2)
	for _, want := range []string{"m0", "m0", "m0"} { // the first entry is skipped
		m := receive(t, messages)
		if m.UUID != want {
			t.Fatalf("%s comes; want %s", m.UUID, want)
		}
		select {
		case other := <-messages:
			t.Fatalf("%s comes beside another", other.UUID)
		case <-time.After(20 * time.Millisecond):
		}
		m.Nack()
	}
	receive(t, messages).Ack()
	if m := receive(t, messages); m.UUID != "m1" {
		t.Errorf("%s comes; want m1", m.UUID)
	}
}

func TestFanOutSurvivesARestartAndEndsWithItsSubscriber(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t, "--appendonly", "yes", "--appendfsync", "always")
	s := subscriber(t, server, "", func(c *stream.SubscriberConfig) { c.ConsumerGroup = "" })
	messages, err := s.Subscribe(context.Background(), topic)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, server.Client(), 1)
	receive(t, messages).Ack()
	server.Stop()
	server.Restart()
	publish(t, server.Client(), 2)
	receive(t, messages).Ack()
	m := receive(t, messages)
	for range 2 { // Close is idempotent
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, open := <-messages; open || m.Context().Err() == nil {
		t.Errorf("open: %v, context: %v; want both ended", open, m.Context().Err())
	}
	if _, err := s.Subscribe(context.Background(), topic); !errors.Is(err, stream.ErrClosed) {
		t.Errorf("%v; want ErrClosed", err)
	}
	if err := s.SubscribeInitialize(fmt.Sprint(topic, "2")); err != nil {
		t.Errorf("initialize: %v", err)
	}
}
