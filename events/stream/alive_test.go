package stream_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

// heartbeats makes a consumer send a heartbeat every 50 ms.
func heartbeats(c *stream.SubscriberConfig) { c.MaxIdleTime = 200 * time.Millisecond }

// idle returns the idle time of a consumer, or false if it does not exist.
func idle(t testing.TB, server *redistest.Server, name string) (time.Duration, bool) {
	t.Helper()
	all, _ := server.Client().XInfoConsumers(context.Background(), topic, group).Result() // none before the group exists
	for _, c := range all {
		if c.Name == name {
			return c.Idle, true
		}
	}
	return 0, false
}

// heard waits until a consumer that has been idle for a while is heard again.
func heard(t testing.TB, server *redistest.Server, name string) {
	t.Helper()
	var longest time.Duration
	eventually(t, "a heartbeat of the consumer", func() bool {
		now, ok := idle(t, server, name)
		if ok && now < longest {
			return true
		}
		longest = max(longest, now)
		return false
	})
}

func TestIdleConsumersAreLive(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	w := start(t, server, "a", heartbeats)
	heard(t, server, "a") // before the first entry
	publish(t, server.Client(), 1)
	w.next().Ack()
	clean(t, server.Client())
	heard(t, server, "a")
	heard(t, server, "a")
	if g, _ := stats(t, server.Client()).Group(group); g.Live != 1 || g.Consumers != 1 {
		t.Errorf("%d of %d consumers are live; want one of one", g.Live, g.Consumers)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if names := consumers(t, server.Client()); len(names) > 0 {
		t.Errorf("consumers %v after Close", names)
	}
}

// TestBusyConsumersAreLive checks a consumer whose window is full, and that its heartbeat leaves the entry in it as it is.
func TestBusyConsumersAreLive(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", func(c *stream.SubscriberConfig) { heartbeats(c); c.Window = 1 })
	publish(t, client, 1)
	m, began := w.next(), time.Now()
	heard(t, server, "a")
	heard(t, server, "a")
	ago := time.Since(began)
	all, err := client.XPendingExt(context.Background(), &redis.XPendingExtArgs{Stream: topic, Group: group, Start: "-", End: "+", Count: 9}).Result()
	if err != nil || len(all) != 1 || all[0].RetryCount != 1 || all[0].Idle < ago-time.Second/10 {
		t.Errorf("%+v, %v; want one entry, delivered once, %v ago", all, err, ago)
	}
	m.Ack()
}

// TestTrimmedEntryStaysPending trims an entry while its handler works. Since Redis 7.0, a claim would drop it.
func TestTrimmedEntryStaysPending(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t) // the embedded Redis forgets a deleted entry
	client := server.Client()
	w := start(t, server, "a", func(c *stream.SubscriberConfig) { heartbeats(c); c.Window = 2 })
	publish(t, client, 2)
	first, second := w.next(), w.next()
	entries, err := client.XRangeN(t.Context(), topic, "-", "+", 1).Result()
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v; want an entry", entries, err)
	}
	if err := client.XDel(t.Context(), topic, entries[0].ID).Err(); err != nil {
		t.Fatal(err)
	}
	heard(t, server, "a")
	heard(t, server, "a")
	pending, err := client.XPending(t.Context(), topic, group).Result()
	if err != nil || pending.Count != 2 {
		t.Errorf("%+v, %v; want two entries", pending, err)
	}
	first.Ack()
	second.Ack()
}
