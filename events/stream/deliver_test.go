package stream_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

// pushedOn waits until each due time has moved by d, and checks that consumer still owns the n entries.
func pushedOn(t testing.TB, client redis.UniversalClient, consumer string, n int64, d time.Duration) {
	t.Helper()
	ctx := context.Background()
	first, err := client.ZRangeWithScores(ctx, due, 0, -1).Result()
	if err != nil || int64(len(first)) != n {
		t.Fatalf("%d due moments, %v; want %d", len(first), err, n)
	}
	eventually(t, "all due moments are pushed on", func() bool {
		return !slices.ContainsFunc(first, func(z redis.Z) bool {
			return client.ZScore(ctx, due, z.Member.(string)).Val() < z.Score+float64(d.Milliseconds())
		})
	})
	if has := pending(t, client)[consumer]; has != n {
		t.Errorf("%s has %d entries; want its %d", consumer, has, n)
	}
}

func TestMessagesAreDeliveredOnceInOrder(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	publish(t, client, 300) // before the group exists
	w := start(t, server, "a", nil)
	for i := range 300 {
		m := w.next()
		if want := fmt.Sprintf("m%d", i); m.UUID != want || m.Metadata.Get("kept") != "yes" {
			t.Fatalf("message %d is %s with %v; want %s as published", i, m.UUID, m.Metadata, want)
		}
		if d := delivery(t, m); d.Attempt() != 1 || d.Stream() != topic || d.Entry() == "" {
			t.Fatalf("attempt %d of %q %q", d.Attempt(), d.Stream(), d.Entry())
		}
		m.Ack()
		<-m.Context().Done()
	}
	clean(t, client)
}

func TestNewEntryWakesIdleConsumer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	fastest := time.Hour
	for range 5 { // the machine may be slow temporarily
		w.none(200 * time.Millisecond)
		began := time.Now()
		publish(t, client, 1)
		w.next().Ack()
		fastest = min(fastest, time.Since(began))
	}
	if fastest > 500*time.Millisecond {
		t.Errorf("it took %v at best; want less than what is left of the second between two looks", fastest)
	}
}

func TestWindowIsNeverExceeded(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", func(c *stream.SubscriberConfig) { c.Window = 3 })
	publish(t, client, 10)
	first, second, third := w.next(), w.next(), w.next()
	w.none(200 * time.Millisecond)
	if n := pending(t, client)["a"]; n != 3 {
		t.Fatalf("%d entries are taken; want 3, nothing is read ahead", n)
	}
	first.Ack()
	w.next().Ack()
	second.Ack()
	third.Ack()
	for range 6 {
		w.next().Ack()
	}
	clean(t, client)
}

func TestNackedMessageIsRedeliveredAfterItsDelay(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", func(c *stream.SubscriberConfig) { c.MaxIdleTime = time.Minute })
	publish(t, client, 2)
	slow := w.next()
	delay.Message(slow, delay.For(400*time.Millisecond))
	began := time.Now()
	slow.Nack()
	other := w.next()
	if other.UUID != "m1" {
		t.Fatalf("%s comes; want the other message meanwhile", other.UUID)
	}
	other.Ack()
	again := w.next()
	if took := time.Since(began); again.UUID != "m0" || took < 400*time.Millisecond-rounding {
		t.Errorf("%s comes after %v; want m0 after 400 ms", again.UUID, took)
	}
	if again.Metadata.Get(delay.DelayedForKey) != "" {
		t.Error("the delay of one delivery shows in the next")
	}
	again.Ack()
	clean(t, client)
}

func TestDelayedMessagesAreDeliveredInOrderOfDueTime(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	publish(t, client, 3)
	ctx, keep := context.Background(), func(z redis.Z) redis.Z {
		return redis.Z{Score: z.Score - float64((4 * time.Hour).Milliseconds()), Member: z.Member}
	}
	for _, after := range []time.Duration{3, 1, 2} {
		m := w.next()
		if err := delivery(t, m).Nack(ctx, after*time.Hour, true); err != nil {
			t.Fatal(err)
		}
		m.Nack()
	}
	later, err := client.ZRangeWithScores(ctx, due, 0, -1).Result()
	if err != nil || len(later) != 3 {
		t.Fatalf("%v, %v; want three due times", later, err)
	}
	if err := client.ZAdd(ctx, due, keep(later[0]), keep(later[1]), keep(later[2])).Err(); err != nil { // all are due, in one step
		t.Fatal(err)
	}
	for _, want := range []string{"m1", "m2", "m0"} {
		m := w.next()
		if m.UUID != want {
			t.Fatalf("%s comes; want %s", m.UUID, want)
		}
		m.Ack()
	}
	clean(t, client)
}

func TestAttemptsCountFailuresButNotContention(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	publish(t, client, 1)
	for i, tc := range []struct {
		uncounted bool
		want      int
	}{{false, 1}, {true, 2}, {true, 2}, {false, 2}, {false, 3}} {
		m := w.next()
		if d := delivery(t, m); d.Attempt() != tc.want || d.Delivered() != i+1 {
			t.Fatalf("delivery %d is attempt %d, number %d; want attempt %d", i+1, d.Attempt(), d.Delivered(), tc.want)
		}
		if tc.uncounted {
			m.Metadata.Set(stream.MetadataUncounted, "true")
		}
		m.Nack()
	}
	m := w.next()
	if got := delivery(t, m).Attempt(); got != 4 {
		t.Fatalf("attempt %d; want 4", got)
	}
	if err := delivery(t, m).Nack(context.Background(), 0, false); err != nil {
		t.Fatal(err)
	}
	m.Nack()
	m = w.next()
	if got := delivery(t, m).Attempt(); got != 4 {
		t.Fatalf("attempt %d after an uncounted Nack; want 4", got)
	}
	m.Ack()
	clean(t, client)
}

// TestHeartbeatKeepsMessagesInFlight has a message that is handled, and others that are not yet handed out.
func TestHeartbeatKeepsMessagesInFlight(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	publish(t, client, 5)
	short := func(c *stream.SubscriberConfig) { c.MaxIdleTime = 2 * time.Second }
	a := start(t, server, "a", short)
	m := a.next()
	eventually(t, "a takes all", func() bool { return pending(t, client)["a"] == 5 })
	b := start(t, server, "b", short)
	pushedOn(t, client, "a", 5, 900*time.Millisecond) // by two heartbeats
	b.none(10 * time.Millisecond)
	if err := m.Context().Err(); err != nil {
		t.Fatalf("the message's context: %v", err)
	}
	m.Ack()
	for range 4 {
		a.next().Ack()
	}
	clean(t, client)
}

func TestLostEntryCancelsItsHandlerAndIsSettledOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	a := start(t, server, "a", func(c *stream.SubscriberConfig) { c.MaxIdleTime = 300 * time.Millisecond })
	publish(t, client, 1)
	m := a.next()
	a.gate.cut.Store(true)
	b := start(t, server, "b", nil)
	second := b.next()
	a.gate.cut.Store(false)
	select {
	case <-m.Context().Done():
	case <-time.After(patience):
		t.Fatal("the first handler's context goes on")
	}
	if cause := context.Cause(m.Context()); !errors.Is(cause, stream.ErrNotOwner) {
		t.Errorf("cause %v; want ErrNotOwner", cause)
	}
	err := delivery(t, m).Settle(m.Context(), result())
	if !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("Settle: %v; want ErrNotOwner", err)
	}
	m.Ack()
	if err := delivery(t, second).Settle(context.Background(), result()); err != nil {
		t.Fatal(err)
	}
	second.Ack()
	clean(t, client)
	if n := length(t, client, results); n != 1 {
		t.Errorf("%d results; want 1", n)
	}
}

func TestLateAckIsRefused(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	a := start(t, server, "a", func(c *stream.SubscriberConfig) { c.MaxIdleTime = 300 * time.Millisecond })
	publish(t, client, 1)
	m := a.next()
	a.gate.cut.Store(true)
	b := start(t, server, "b", nil)
	second := b.next()
	m.Ack()
	a.gate.cut.Store(false)
	eventually(t, "a logs it", func() bool { return a.log.count("finished too late") == 1 })
	if n := pending(t, client)["b"]; n != 1 {
		t.Fatalf("b has %d entries pending; want its one", n)
	}
	second.Ack()
	clean(t, client)
}

func TestAnyDelayIsAccepted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	publish(t, client, 2)
	for _, after := range []time.Duration{math.MaxInt64, math.MinInt64} {
		m := w.next()
		if err := delivery(t, m).Nack(context.Background(), after, true); err != nil {
			t.Fatal(err)
		}
		m.Nack()
	}
	again := w.next()
	if again.UUID != "m1" {
		t.Errorf("%s comes; want the one that was not to wait", again.UUID)
	}
	again.Ack()
	w.none(200 * time.Millisecond)
}
