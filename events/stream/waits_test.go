package stream_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// TestWaits has an entry unread, in flight, parked for its key, and settled.
func TestWaits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	now := func() time.Time {
		return testenv.Must(stream.Time(t.Context(), client, topic))(t).Add(time.Millisecond)
	}
	check := func(when, key string, since time.Time, want bool) {
		t.Helper()
		if got := testenv.Must(stream.Waits(t.Context(), client, "lockstep:{0}:", topic, group, key, since))(t); got != want {
			t.Errorf("%s, %q: %v, want %v", when, key, got, want)
		}
	}
	check("without a stream", "a", now(), false)
	before := now()
	time.Sleep(2 * time.Millisecond) // IDs have milliseconds
	testenv.Must(client.XAdd(t.Context(), &redis.XAddArgs{Stream: topic, Values: []string{"n", "1"}}).Result())(t)
	check("unread, without a group", "a", now(), true)
	check("added later", "a", before, false)

	w := start(t, server, "w", func(c *stream.SubscriberConfig) {
		c.Key = func(*message.Message) string { return "a/b" }
		c.NackResendSleep = time.Hour
	})
	m := w.next()
	check("in flight", "a", now(), true)
	check("in flight since later", "a/b", before, false)
	m.Nack()
	eventually(t, "it is parked", func() bool { return client.ZCard(t.Context(), parkedIndex).Val() == 1 })
	check("parked", "a/b", before, true)
	for _, other := range []string{"a", "a/", "a/bc", "A/b"} {
		check("parked with another key", other, now(), false)
	}
}
