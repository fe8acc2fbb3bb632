package stream_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

const (
	parkedIndex = "lockstep:{0}:parked:changes:workers"
	labels      = "lockstep:{0}:labels:changes:workers"
)

// byMetadata returns the key that publishKeyed sets.
func byMetadata(m *message.Message) string { return m.Metadata.Get("key") }

// publishKeyed adds n messages with one key, named key-0, key-1 and so on.
func publishKeyed(t testing.TB, client redis.UniversalClient, key string, n int) {
	t.Helper()
	for i := range n {
		m := message.NewMessage(fmt.Sprintf("%s-%d", key, i), []byte("{}"))
		m.Metadata.Set("key", key)
		publishAll(t, client, m)
	}
}

func keyed(window int, visibility time.Duration) func(*stream.SubscriberConfig) {
	return func(c *stream.SubscriberConfig) { c.Key, c.Window, c.MaxIdleTime = byMetadata, window, visibility }
}

func nothingParked(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	clean(t, client)
	if n := client.Exists(context.Background(), parkedIndex, labels).Val(); n != 0 {
		t.Errorf("parked index %v, labels %v; want nothing left",
			client.ZRange(context.Background(), parkedIndex, 0, 9).Val(), client.HGetAll(context.Background(), labels).Val())
	}
}

func TestOneMessagePerKeyIsInFlight(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	publishKeyed(t, client, "hot", 40)
	publishKeyed(t, client, "cold", 1)
	w := start(t, server, "a", keyed(8, time.Minute)) // longer than the test
	var held []*message.Message
	for cold := false; !cold || len(held) < 1; {
		if m := w.next(); byMetadata(m) == "hot" {
			held = append(held, m)
		} else {
			cold = true
			m.Ack()
		}
	}
	w.none(300 * time.Millisecond)
	seen := make(map[string]bool)
	for len(seen) < 40 {
		for _, m := range held {
			if seen[m.UUID] || delivery(t, m).Delivered() != 1 {
				t.Errorf("%s is delivered %d times", m.UUID, delivery(t, m).Delivered())
			}
			seen[m.UUID] = true
			m.Ack()
		}
		held = nil
		if len(seen) < 40 {
			held = append(held, w.next())
		}
	}
	nothingParked(t, client)
}

func TestMessageBesideOthersWaitsForNone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	publishKeyed(t, client, "hot", 2)
	for _, id := range []string{"beside", "beside too"} {
		m := message.NewMessage(id, []byte("{}"))
		m.Metadata.Set("key", "hot")
		m.Metadata.Set("beside", "yes")
		publishAll(t, client, m)
	}
	w := start(t, server, "a", func(c *stream.SubscriberConfig) {
		keyed(8, time.Minute)(c) // longer than the test
		c.Beside = func(m *message.Message) bool { return m.Metadata.Get("beside") != "" }
	})
	head := w.next()
	for _, want := range []string{"beside", "beside too"} {
		m := w.next()
		if m.UUID != want {
			t.Fatalf("%s comes, want %s", m.UUID, want)
		}
		m.Ack()
	}
	w.none(200 * time.Millisecond) // their end does not make the key free
	head.Ack()
	w.next().Ack()
	nothingParked(t, client)
}

func TestConsumerWithoutRoomUnparksForOthers(t *testing.T) {
	t.Parallel()
	const total = 5
	server := redistest.Start(t)
	client, hook := server.Client(), &counted{}
	publishKeyed(t, client, "hot", total)
	var full atomic.Bool
	a := start(t, server, "a", func(c *stream.SubscriberConfig) {
		keyed(8, 10*time.Minute)(c) // much longer than the test
		c.Client.AddHook(hook)
		c.Room = func() int {
			if full.Load() {
				return 0
			}
			return 8
		}
	})
	head := a.next()
	eventually(t, "the rest is parked", func() bool { return pending(t, client)["(parked)"] == total-1 })
	full.Store(true)
	b := start(t, server, "b", keyed(8, 10*time.Minute))
	before := hook.unparks.Load()
	head.Ack()
	next := b.next()
	b.none(300 * time.Millisecond)
	if n := hook.unparks.Load() - before; n == 0 || n > 2 { // Redis does not know the script the first time
		t.Errorf("%d calls of unpark for one head that has ended", n)
	}
	next.Ack()
	for range total - 2 {
		b.next().Ack()
	}
	nothingParked(t, client)
}

func TestEntriesParkedByADeadConsumerAreRedelivered(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	publishKeyed(t, client, "hot", 5)
	a := start(t, server, "a", keyed(8, time.Second))
	first := a.next()
	eventually(t, "four are parked", func() bool { return pending(t, client)["(parked)"] == 4 })
	a.gate.cut.Store(true)
	b := start(t, server, "b", keyed(8, time.Second))
	seen := map[string]bool{}
	for len(seen) < 5 {
		m := b.next()
		seen[m.UUID] = true
		m.Ack()
	}
	a.gate.cut.Store(false)
	first.Ack()
	nothingParked(t, client)
}

// allSiblings reads all pages of siblings.
func allSiblings(t *testing.T, d *stream.Delivery, limit int) []stream.Sibling {
	t.Helper()
	var all []stream.Sibling
	for page := ""; ; {
		siblings, next, err := d.Siblings(context.Background(), page, limit)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, siblings...)
		if page = next; page == "" {
			return all
		}
	}
}

func TestHandlerSettlesSiblings(t *testing.T) {
	t.Parallel()
	const total = 230
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	publishKeyed(t, client, "hot", total)
	publishKeyed(t, client, "hotter", 3)
	w := start(t, server, "a", keyed(16, time.Minute))
	var m *message.Message
	for m == nil || byMetadata(m) != "hot" {
		m = w.next()
	}
	eventually(t, "the rest is parked", func() bool { return pending(t, client)["(parked)"] == total-1+2 })
	d := delivery(t, m)
	siblings := allSiblings(t, d, 50)
	ids := map[string]bool{}
	for i, s := range siblings {
		ids[s.Message.UUID] = true
		siblings[i].Outputs = []stream.Output{{Stream: results, Message: message.NewMessage(s.Message.UUID, []byte("done"))}}
	}
	if len(siblings) != total-1 || len(ids) != total-1 || ids[m.UUID] {
		t.Fatalf("%d siblings, %d different ones; want %d", len(siblings), len(ids), total-1)
	}

	client.HSet(ctx, "lockstep:{0}:lock", "owner", "other", "fence", "8", "expires", "1")
	guard := &stream.Guard{Key: "lockstep:{0}:lock", Owner: "me", Fence: 7}
	if n, err := d.SettleSiblings(ctx, guard, siblings); !errors.Is(err, stream.ErrGuard) || n != 0 {
		t.Fatalf("with a lost lease: %d settled, %v", n, err)
	}
	if n, err := d.SettleSiblings(ctx, nil, siblings); err != nil || n != len(siblings) {
		t.Fatalf("%d settled, %v; want %d", n, err, len(siblings))
	}
	if n := len(allSiblings(t, d, 50)); n != 0 {
		t.Errorf("%d siblings are left", n)
	}
	m.Ack()
	for client.XLen(ctx, results).Val() < total-1+3 {
		m := w.next()
		d := delivery(t, m)
		if byMetadata(m) != "hotter" {
			t.Fatalf("%s is delivered again", m.UUID)
		}
		if err := d.Settle(ctx, result()); err != nil {
			t.Fatal(err)
		}
		m.Ack()
	}
}

func TestSiblingOfAnotherConsumerIsSkipped(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	publishKeyed(t, client, "hot", 2)
	a := start(t, server, "a", keyed(1, time.Minute)) // its window is full, so it takes nothing else
	m := a.next()
	b := start(t, server, "b", keyed(8, time.Minute))
	other := b.next()
	if err := delivery(t, other).Nack(ctx, time.Hour, false); err != nil {
		t.Fatal(err)
	}
	other.Ack() // has no effect
	siblings := allSiblings(t, delivery(t, m), 10)
	if len(siblings) != 1 {
		t.Fatalf("siblings: %v; want the one that is parked", siblings)
	}
	client.ZAdd(ctx, due, redis.Z{Score: 1, Member: siblings[0].Entry})
	other = b.next()
	siblings[0].Outputs = result().Outputs
	n, err := delivery(t, m).SettleSiblings(ctx, nil, siblings)
	if n != 0 || err != nil || client.XLen(ctx, results).Val() != 0 {
		t.Errorf("%d settled, %v; want it left alone", n, err)
	}
	other.Ack()
	m.Ack()
	nothingParked(t, client)
}

func TestRoomLeavesTheRestToOtherConsumers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	var room atomic.Int64
	full := start(t, server, "a", func(c *stream.SubscriberConfig) { c.Room = func() int { return int(room.Swap(0)) } })
	publish(t, client, 3)
	full.none(300 * time.Millisecond)
	other := start(t, server, "b", nil)
	for range 3 {
		other.next().Ack()
	}
	if err := other.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		t.Fatal(err)
	}
	publish(t, client, 3)
	room.Store(2)
	full.next().Ack()
	full.next().Ack()
	full.none(300 * time.Millisecond)
	room.Store(1)
	full.next().Ack()
	clean(t, client)
}

func TestNewEntriesQueueBehindParkedOnesOfTheirKey(t *testing.T) {
	t.Parallel()
	const total = 200
	server := redistest.Start(t)
	client := patient(server.Client())
	w := start(t, server, "a", func(c *stream.SubscriberConfig) {
		keyed(16, time.Minute)(c)
		patient(c.Client)
		patient(c.Reader)
	})
	publishKeyed(t, client, "hot", 20)
	for i := range total {
		m := w.next()
		if want := fmt.Sprintf("hot-%d", i); m.UUID != want {
			t.Fatalf("%s comes; want %s", m.UUID, want)
		}
		if i+20 < total { // a new entry at the moment at which the key has capacity again
			next := message.NewMessage(fmt.Sprintf("hot-%d", i+20), []byte("{}"))
			next.Metadata.Set("key", "hot")
			publishAll(t, client, next)
		}
		m.Ack()
	}
	nothingParked(t, client)
}

// patient makes a client wait for a reply for as long as a busy machine takes: an entry whose reply is lost comes after
// the next one of its key.
func patient(client redis.UniversalClient) redis.UniversalClient {
	client.(*redis.Client).Options().ReadTimeout = time.Minute
	return client
}

// counted counts the calls of the take and unpark scripts.
type counted struct {
	redistest.RoundTrips // for the other hooks
	takes, unparks       atomic.Int64
}

func (c *counted) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		switch {
		case stream.Takes(cmd):
			c.takes.Add(1)
		case stream.Unparks(cmd):
			c.unparks.Add(1)
		}
		return next(ctx, cmd)
	}
}

func TestManyKeysAreUnparkedWithFewCalls(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	const keys = 1000
	server := redistest.Start(t)
	client, hook := patient(server.Client()), &counted{}
	for range 2 {
		for i := range keys {
			publishKeyed(t, client, fmt.Sprintf("k%d", i), 1)
		}
	}
	w := start(t, server, "a", func(c *stream.SubscriberConfig) {
		keyed(4*keys, time.Minute)(c)
		patient(c.Client).AddHook(hook)
		patient(c.Reader)
	})
	var held []*message.Message
	for range keys {
		held = append(held, w.next())
	}
	eventually(t, "the rest is parked", func() bool { return pending(t, client)["(parked)"] == keys })
	before := hook.unparks.Load()
	for _, m := range held {
		m.Ack()
	}
	for range keys {
		w.next().Ack()
	}
	nothingParked(t, client)
	if n := hook.unparks.Load() - before; n == 0 || n > keys/10 {
		t.Errorf("%d calls to unpark %d entries of as many keys; want %d at most", n, keys, keys/10)
	}
}
