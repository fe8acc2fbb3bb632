package stream_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

func consumers(t *testing.T, client redis.UniversalClient) (names []string) {
	t.Helper()
	all, err := client.XInfoConsumers(context.Background(), topic, group).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.Name != "(parked)" {
			names = append(names, c.Name)
		}
	}
	return names
}

func TestCloseLetsHandlersFinish(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	publish(t, client, 1)
	m := w.next()
	closed := make(chan error, 1)
	go func() { closed <- w.Close() }()
	select {
	case <-closed:
		t.Fatal("Close does not wait for the handler")
	case <-w.messages:
		t.Fatal("the channel is closed while a handler works")
	case <-time.After(200 * time.Millisecond):
	}
	if err := delivery(t, m).Settle(m.Context(), result()); err != nil {
		t.Fatal(err)
	}
	m.Ack()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if _, open := <-w.messages; open {
		t.Error("the channel is still open")
	}
	clean(t, client)
	if names := consumers(t, client); len(names) != 0 {
		t.Errorf("consumers %v are left; want none", names)
	}
	if err := client.Ping(context.Background()).Err(); err != nil {
		t.Errorf("the caller's client: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
	if _, err := w.Subscribe(context.Background(), topic); !errors.Is(err, stream.ErrClosed) {
		t.Errorf("Subscribe after Close: %v; want ErrClosed", err)
	}
}

func TestCloseGivesBackUnfinishedEntriesAtOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	publish(t, client, 3)
	a := start(t, server, "a", func(c *stream.SubscriberConfig) { c.Grace, c.MaxIdleTime = 50*time.Millisecond, time.Minute })
	hung := a.next() // its handler hangs; two more entries are read but not delivered
	eventually(t, "a takes all", func() bool { return pending(t, client)["a"] == 3 })
	b := start(t, server, "b", nil)
	b.none(20 * time.Millisecond)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if cause := context.Cause(hung.Context()); !errors.Is(cause, stream.ErrClosed) {
		t.Errorf("the hung handler's context ended with %v; want ErrClosed", cause)
	}
	for range 3 {
		m := b.next() // long before the visibility timeout
		if got := delivery(t, m).Attempt(); got != 1 {
			t.Errorf("attempt %d; want 1, closing must not count as a failure", got)
		}
		m.Ack()
	}
	if err := delivery(t, hung).Settle(context.Background(), result()); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("the hung handler settles: %v; want ErrNotOwner", err)
	}
	clean(t, client)
	if names := consumers(t, client); len(names) != 1 || names[0] != "b" {
		t.Errorf("consumers %v; want b alone", names)
	}
}

func TestConsumerWithPendingEntriesIsNotRemoved(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	a := start(t, server, "a", func(c *stream.SubscriberConfig) { c.Grace = 50 * time.Millisecond })
	publish(t, client, 1)
	m := a.next()
	ctx := context.Background()
	// An external XCLAIM assigns consumer a an entry that it does not track.
	client.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: []any{"repo", "x/y"}})
	eventually(t, "a has both", func() bool { return pending(t, client)["a"] == 2 })
	a.next().Ack()
	alien := delivery(t, m).Entry()
	m.Ack()
	eventually(t, "a has none", func() bool { return pending(t, client)["a"] == 0 })
	client.XClaim(ctx, &redis.XClaimArgs{Stream: topic, Group: group, Consumer: "a", Messages: []string{alien}})
	client.Do(ctx, "XCLAIM", topic, group, "a", 0, alien, "FORCE")
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if n := pending(t, client)["a"]; n != 1 {
		t.Errorf("%d entries pending; want 1, it must not go with its consumer", n)
	}
}

func TestCloseReturnsWithUnwrittenEndingsWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	publish(t, client, 8)
	w := start(t, server, "a", func(c *stream.SubscriberConfig) { c.Grace = 10 * time.Millisecond })
	for range 4 {
		m := w.next()
		defer m.Ack()
	}
	first, second := w.next(), w.next()
	eventually(t, "more is taken, and waits to be handed out", func() bool { return pending(t, client)["a"] == 8 })
	w.gate.cut.Store(true)
	defer w.gate.cut.Store(false)
	first.Ack()
	second.Ack()
	closed := make(chan struct{})
	go func() { _ = w.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Error("Close hangs until Redis is back")
	}
}

func TestDeadConsumerIsMissingUntilItIsReplacedOrRemoved(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.StartReal(t)
	client := server.Client()
	client.XGroupCreateMkStream(ctx, topic, group, "0")
	for _, name := range []string{"pod-a-1-x", "pod-b-1-x", "shard-1"} {
		client.XGroupCreateConsumer(ctx, topic, group, name)
	}
	time.Sleep(5 * time.Millisecond) // they are idle for longer than the consumer below runs
	soon := func(c *stream.SubscriberConfig) {
		c.MaxIdleTime, c.ClaimInterval = 50*time.Millisecond, 20*time.Millisecond
	}
	start(t, server, "shard-2", soon)
	start(t, server, "pod-a-1-y", soon)
	start(t, server, "pod-c-1-x", func(c *stream.SubscriberConfig) { c.ClaimInterval = 20 * time.Millisecond })
	eventually(t, "the one whose host came back is gone", func() bool { return !slices.Contains(consumers(t, client), "pod-a-1-x") })
	if names := consumers(t, client); !slices.Contains(names, "pod-b-1-x") || !slices.Contains(names, "shard-1") || len(names) != 5 {
		t.Errorf("consumers %v; want the ones on other hosts and without a host too", names)
	}
	for range 2 {
		if gone, err := stream.RemoveConsumer(ctx, client, topic, group, "pod-b-1-x"); !gone || err != nil {
			t.Errorf("%t, %v", gone, err)
		}
	}
	if names := consumers(t, client); len(names) != 4 {
		t.Errorf("consumers %v", names)
	}
}

func TestDeadConsumerIsRemovedOnceNothingIsPending(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.StartReal(t) // the embedded Redis does not report idle times of consumers
	client := server.Client()
	client.XGroupCreateMkStream(ctx, topic, group, "0")
	publish(t, client, 1)
	client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: group, Consumer: "pod-1-dead", Streams: []string{topic, ">"}, Block: -1})
	client.XGroupCreateConsumer(ctx, topic, group, "pod-2-idle")
	if names := consumers(t, client); len(names) != 2 {
		t.Fatalf("consumers %v; want two", names)
	}
	w := start(t, server, "pod-3-live", func(c *stream.SubscriberConfig) {
		c.MaxIdleTime, c.ClaimInterval = 50*time.Millisecond, 20*time.Millisecond
	})
	var acked atomic.Int32
	go func() { // slow messages are redelivered
		for m := range w.messages {
			m.Ack()
			acked.Add(1)
		}
	}()
	eventually(t, "only the living one is left", func() bool {
		names := consumers(t, client)
		return len(names) == 1 && names[0] == "pod-3-live"
	})
	clean(t, client) // the entry of the dead consumer is settled too
	before := acked.Load()
	publish(t, client, 1)
	eventually(t, "work goes on", func() bool { return acked.Load() > before })
	clean(t, client)
}
