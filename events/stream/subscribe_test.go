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

// subscriber returns a Subscriber without a subscription, with a consumer's name.
func subscriber(t *testing.T, server *redistest.Server, name string, change func(*stream.SubscriberConfig)) *stream.Subscriber {
	t.Helper()
	cfg := stream.SubscriberConfig{Client: server.Client(), Reader: server.Client(), ConsumerGroup: group, Consumer: name, MaxIdleTime: time.Minute}
	if change != nil {
		change(&cfg)
	}
	s, err := stream.NewSubscriber(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Errorf("close %s: %v", name, err)
		}
	})
	return s
}

func receive(t *testing.T, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m, open := <-messages:
		if !open {
			t.Fatal("the channel is closed; want a message")
		}
		return m
	case <-time.After(patience):
		t.Fatal("no message comes")
	}
	return nil
}

type requestKey struct{}

func TestEndOfContextEndsTheSubscriptionAtOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	a := subscriber(t, server, "a", func(c *stream.SubscriberConfig) { c.Grace = 2 * patience })
	publish(t, client, 3)
	ctx, cancel := context.WithCancelCause(context.WithValue(context.Background(), requestKey{}, "a value"))
	messages, err := a.Subscribe(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	held := receive(t, messages)
	if got := held.Context().Value(requestKey{}); got != "a value" {
		t.Errorf("the message's context has %v; want the value of Subscribe's", got)
	}
	eventually(t, "more is read ahead", func() bool { return pending(t, client)["a"] == 3 })
	b := start(t, server, "b", nil)
	b.none(20 * time.Millisecond)

	began, cause := time.Now(), errors.New("the caller ends it")
	cancel(cause)
	for m := range messages {
		t.Errorf("%s comes after the end", m.UUID)
	}
	if took := time.Since(began); took > patience {
		t.Errorf("the channel closes after %v; want it without the grace period", took)
	}
	if got := context.Cause(held.Context()); !errors.Is(got, cause) {
		t.Errorf("the message's context ended with %v; want the cause of Subscribe's", got)
	}
	for range 3 { // long before the visibility timeout
		m := b.next()
		if got := delivery(t, m).Attempt(); got != 1 {
			t.Errorf("%s comes as attempt %d; want 1", m.UUID, got)
		}
		m.Ack()
	}
	if held.Ack(); errors.Is(delivery(t, held).Settle(context.Background(), result()), nil) {
		t.Error("the ended delivery can still be settled")
	}
	clean(t, client)
	if names := consumers(t, client); len(names) != 1 || names[0] != "b" {
		t.Errorf("consumers %v; want b alone", names)
	}
}

func TestEndOfOneContextLeavesOtherSubscriptionsAlone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	s := subscriber(t, server, "a", nil)
	first, cancel := context.WithCancel(context.Background())
	ended, err := s.Subscribe(first, topic)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := s.Subscribe(context.Background(), topic)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for m := range ended {
		m.Nack()
	}
	publish(t, client, 5)
	for range 5 {
		receive(t, messages).Ack()
	}
	clean(t, client)
}

func TestDrainingKeepsTheGracePeriod(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	s := subscriber(t, server, "a", nil)
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), requestKey{}, "a value"))
	messages, err := s.Draining().Subscribe(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, client, 1)
	m := receive(t, messages)
	cancel()
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case <-messages:
		t.Fatal("the channel is closed while a handler works")
	case err := <-closed:
		t.Fatalf("Close does not wait for the handler: %v", err)
	case <-m.Context().Done():
		t.Fatalf("the message's context ended: %v", context.Cause(m.Context()))
	case <-time.After(100 * time.Millisecond):
	}
	if got := m.Context().Value(requestKey{}); got != "a value" {
		t.Errorf("the message's context has %v; want the value of Subscribe's", got)
	}
	if err := delivery(t, m).Settle(m.Context(), result()); err != nil {
		t.Fatal(err)
	}
	m.Ack()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	clean(t, client)
}

func TestNewGroupStartsWhereConfigured(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, tc := range map[string]struct {
		start func(ids []string) string
		first string // first message delivered, of m0 to m3, the last of which is published after Subscribe
	}{
		"by default":           {func([]string) string { return "" }, "m0"},
		"at the first entry":   {func([]string) string { return "0" }, "m0"},
		"after the last entry": {func([]string) string { return "$" }, "m3"},
		"after an entry":       {func(ids []string) string { return ids[1] }, "m2"},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			client := server.Client()
			publish(t, client, 3)
			var ids []string
			for _, e := range entries(t, client, topic) {
				ids = append(ids, e.ID)
			}
			w := start(t, server, "a", func(c *stream.SubscriberConfig) { c.OldestId = tc.start(ids) })
			publishOne(t, client, "m3")
			for i := int(tc.first[1] - '0'); i <= 3; i++ {
				m := w.next()
				if want := fmt.Sprintf("m%d", i); m.UUID != want {
					t.Fatalf("%s comes; want %s", m.UUID, want)
				}
				m.Ack()
			}
			clean(t, client)

			// A group that is lost is re-created at the same place, where the consumer began.
			if err := client.XGroupDestroy(ctx, topic, group).Err(); err != nil {
				t.Fatal(err)
			}
			m := w.next()
			if m.UUID != tc.first {
				t.Errorf("after the loss of the group, %s comes first; want %s", m.UUID, tc.first)
			}
			m.Ack()
		})
	}
}

func TestStartAfterTheLastEntryOfAMissingStream(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	w := start(t, server, "a", func(c *stream.SubscriberConfig) { c.OldestId = "$" })
	publish(t, server.Client(), 2)
	for i := range 2 {
		m := w.next()
		if want := fmt.Sprintf("m%d", i); m.UUID != want {
			t.Errorf("%s comes; want %s", m.UUID, want)
		}
		m.Ack()
	}
	clean(t, server.Client())
}

func TestExistingGroupContinuesWhateverItsStart(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	if err := client.XGroupCreateMkStream(context.Background(), topic, group, "0").Err(); err != nil {
		t.Fatal(err)
	}
	publish(t, client, 1)
	w := start(t, server, "a", func(c *stream.SubscriberConfig) { c.OldestId = "$" })
	w.next().Ack()
	clean(t, client)
}
