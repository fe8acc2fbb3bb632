package stream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

func xadd(key string, values ...any) *redis.XAddArgs {
	return &redis.XAddArgs{Stream: key, Values: values}
}

// takes watches the calls of the take script, and loses replies.
type takes struct {
	redistest.RoundTrips                        // for the other hooks
	lose                 func(entries int) bool // whether to lose a reply with so many entries; optional
	lost                 atomic.Int64           // entries in lost replies
	late                 func()                 // called for a take after its deadline; optional
}

func (h *takes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err != nil || !stream.Takes(cmd) {
			return err
		}
		reply, _ := cmd.(interface{ Slice() ([]any, error) }).Slice()
		switch {
		case len(reply) == 1 && h.late != nil:
			h.late()
		case len(reply) == 7 && h.lose != nil:
			again, _ := reply[1].([]any)
			fresh, _ := reply[2].([]any)
			if n := len(again) + len(fresh); h.lose(n) {
				h.lost.Add(int64(n))
				err = &net.OpError{Op: "read", Err: io.EOF}
				cmd.SetErr(err)
			}
		}
		return err
	}
}

// A worker of which Redis runs a take only after its deadline.
func TestTakeAfterItsDeadlineTakesNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.StartReal(t) // the embedded Redis has no CLIENT PAUSE
	client, late := server.Client(), make(chan struct{})
	var once sync.Once
	a := start(t, server, "a", func(c *stream.SubscriberConfig) {
		cut := &gate{}
		c.MaxIdleTime = 2 * time.Second // the deadline is half of it
		c.Client.AddHook(cut)
		c.Client.AddHook(&takes{late: func() { // from now on it is silent
			once.Do(func() {
				cut.cut.Store(true)
				close(late)
			})
		}})
	})
	a.none(50 * time.Millisecond)
	pipe := client.Pipeline()
	pipe.XAdd(ctx, xadd(topic, "id", "m0"))
	pipe.Do(ctx, "CLIENT", "PAUSE", 2200, "ALL")
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case <-late:
	case <-time.After(patience):
		t.Fatal("no take is late")
	}
	if n := pending(t, client)["a"]; n != 0 {
		t.Fatalf("%d entries are pending under the consumer that gave up; want none", n)
	}
	eventually(t, "it is logged", func() bool { return a.log.count("slow to run the script") == 1 })
	b := start(t, server, "b", nil)
	m := b.next()
	if d := delivery(t, m); d.Attempt() != 1 || d.Delivered() != 1 {
		t.Errorf("attempt %d, delivery %d; want the first", d.Attempt(), d.Delivered())
	}
	m.Ack()
	clean(t, client)
}

func TestEntriesOfALostReplyAreRedeliveredUncounted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, first := server.Client(), true
	hook := &takes{lose: func(entries int) bool {
		lose := first && entries > 0
		first = first && !lose
		return lose
	}}
	w := start(t, server, "a", func(c *stream.SubscriberConfig) {
		c.MaxIdleTime = 300 * time.Millisecond
		c.Client.AddHook(hook)
	})
	awaitLater(t, client)
	publish(t, client, 5)
	twice := 0
	for range 5 {
		m := w.next()
		d := delivery(t, m)
		if d.Attempt() != 1 {
			t.Errorf("%s comes as attempt %d; want 1, for no handler had it", m.UUID, d.Attempt())
		}
		if d.Delivered() == 2 {
			twice++
		}
		m.Ack()
	}
	if lost := hook.lost.Load(); lost == 0 || int64(twice) != lost {
		t.Errorf("%d entries come again; want %d, as many as were lost", twice, lost)
	}
	clean(t, client)
}

// awaitLater waits until a time is later than now for the take script. In the embedded Redis time goes on while a script runs, so a take
// shortly after a subscription may seem to be before it.
func awaitLater(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	now := func() time.Time { return client.Time(context.Background()).Val() }
	before := now()
	eventually(t, "a later time", func() bool { return now().Sub(before) > 200*time.Millisecond })
}

// TestDeathOfAProcess covers what its death means for an entry, which is not a failed attempt.
func TestDeathOfAProcess(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		next   string // the consumer after the death
		before func(d *stream.Delivery) error
		deaths int
	}{
		"while it waits":               {"b", func(*stream.Delivery) error { return nil }, 0},
		"while its handler runs":       {"b", func(d *stream.Delivery) error { return d.Begin(context.Background(), true) }, 1},
		"under the name of the killed": {"a", func(d *stream.Delivery) error { return d.Begin(context.Background(), true) }, 1},
		"begun twice": {"b", func(d *stream.Delivery) error {
			return errors.Join(d.Begin(context.Background(), true), d.Begin(context.Background(), true))
		}, 1},
		"given back before": {"b", func(d *stream.Delivery) error {
			return errors.Join(d.Begin(context.Background(), true), d.Nack(context.Background(), 0, false))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			client := server.Client()
			publish(t, client, 1)
			brief := func(c *stream.SubscriberConfig) { c.MaxIdleTime = time.Second }
			a := start(t, server, "a", brief)
			m := a.next()
			if err := tc.before(delivery(t, m)); err != nil {
				t.Fatal(err)
			}
			a.gate.cut.Store(true)
			eventually(t, "no script is under way", func() bool { return a.gate.running.Load() == 0 })
			m = start(t, server, tc.next, brief).next()
			if d := delivery(t, m); d.Deaths() != tc.deaths || d.Attempt() != 1 || d.Delivered() != 2 {
				t.Errorf("%d deaths, attempt %d, delivery %d; want %d, 1 and 2", d.Deaths(), d.Attempt(), d.Delivered(), tc.deaths)
			}
			m.Ack()
			clean(t, client)
		})
	}
}

// TestDeathsAddUp kills each consumer that handles an entry, but for one that only waits, and one that fails.
func TestDeathsAddUp(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	publish(t, client, 1)
	var was string
	for i, want := range []string{"0 deaths, attempt 1", "1 deaths, attempt 1", "1 deaths, attempt 1", "1 deaths, attempt 2", "2 deaths, attempt 2"} {
		w := start(t, server, fmt.Sprint("w", i), func(c *stream.SubscriberConfig) { c.MaxIdleTime = time.Second })
		d := delivery(t, w.next())
		if was = fmt.Sprintf("%d deaths, attempt %d", d.Deaths(), d.Attempt()); was != want {
			t.Fatalf("%d: %s; want %s", i, was, want)
		}
		var err error
		if i != 1 { // that one waits
			err = d.Begin(t.Context(), true)
		}
		if i == 2 {
			err = errors.Join(err, d.Nack(t.Context(), 0, true))
		}
		if err != nil {
			t.Fatal(err)
		}
		if i == 4 {
			if err := d.Settle(t.Context(), stream.Settlement{}); err != nil {
				t.Fatal(err)
			}
			break
		}
		w.gate.cut.Store(true)
		eventually(t, "no script is under way", func() bool { return w.gate.running.Load() == 0 })
	}
	clean(t, client)
}

func TestBeginOfALostEntry(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	publish(t, client, 1)
	a := start(t, server, "a", nil)
	m := a.next()
	d := delivery(t, m)
	if err := client.XClaim(t.Context(), &redis.XClaimArgs{Stream: topic, Group: group, Consumer: "b", Messages: []string{d.Entry()}}).Err(); err != nil {
		t.Fatal(err)
	}
	if err := d.Begin(t.Context(), true); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("%v; want ErrNotOwner", err)
	}
	if n := client.HLen(t.Context(), failures).Val(); n != 0 {
		t.Errorf("%d fields; want none of an entry that another consumer owns", n)
	}
}

// padded adds n entries of the given size, named prefix-0 and so on.
func padded(t *testing.T, client redis.UniversalClient, prefix string, n, size int) {
	t.Helper()
	text := strings.Repeat("x", size)
	for i := range n {
		if err := client.XAdd(context.Background(), xadd(topic, "id", fmt.Sprintf("%s-%d", prefix, i), "text", text)).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadsAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	const mb, limit = 1 << 20, 4
	server := redistest.Start(t)
	client := server.Client()
	padded(t, client, "large", 40, mb)
	w := start(t, server, "a", func(c *stream.SubscriberConfig) { c.Bytes, c.MaxIdleTime = limit*mb, time.Minute })
	for seen := 0; seen < 40; {
		var held []*message.Message
		for len(held) < min(limit, 40-seen) {
			held = append(held, w.next())
		}
		for more := true; more; {
			select {
			case m := <-w.messages:
				held = append(held, m)
			case <-time.After(200 * time.Millisecond):
				more = false
			}
		}
		// An entry is a little larger than 1 MB, so that the fourth exceeds the limit. Every read starts with two.
		if n := len(held); n > limit+2 {
			t.Fatalf("%d entries are in flight; want %d, and one read at most", n, limit)
		}
		seen += len(held)
		for _, m := range held {
			m.Ack()
		}
	}
	clean(t, client)
}

func TestHugeEntriesAmongSmallOnesAreDelivered(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	for i := range 6 {
		padded(t, client, fmt.Sprintf("small-%d", i), 50, 100)
		padded(t, client, fmt.Sprintf("huge-%d", i), 2, 5<<20)
	}
	w := start(t, server, "a", func(c *stream.SubscriberConfig) { c.Bytes, c.MaxIdleTime = 1<<20, time.Minute }) // less than one huge entry
	seen := map[string]bool{}
	for len(seen) < 6*52 {
		m := w.next()
		if seen[m.UUID] || delivery(t, m).Attempt() != 1 {
			t.Fatalf("%s comes again", m.UUID)
		}
		seen[m.UUID] = true
		m.Ack()
	}
	clean(t, client)
}

func TestReadAfterALostReplyIsSmaller(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, hook := server.Client(), &takes{lose: func(entries int) bool { return entries > 4 }}
	publish(t, client, 40)
	w := start(t, server, "a", func(c *stream.SubscriberConfig) {
		c.MaxIdleTime = 200 * time.Millisecond
		c.Client.AddHook(hook)
	})
	seen := map[string]bool{}
	for len(seen) < 40 {
		m := w.next()
		seen[m.UUID] = true
		m.Ack()
	}
	clean(t, client)
	if hook.lost.Load() == 0 {
		t.Error("no reply was lost")
	}
}

// Due times of entries that are no longer pending hide missing ones from a quick comparison of the numbers.
func TestSweepRepairsMissingDueTimesBesideStaleMembers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	publish(t, client, 2)
	client.XGroupCreate(ctx, topic, group, "0")
	err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: group, Consumer: "alien", Streams: []string{topic, ">"}, Count: 2}).Err()
	if err != nil {
		t.Fatal(err)
	}
	far := float64(time.Now().Add(time.Hour).UnixMilli())
	if err := client.ZAdd(ctx, due, redis.Z{Score: far, Member: "1-0"}, redis.Z{Score: far, Member: "2-0"}).Err(); err != nil {
		t.Fatal(err)
	}
	w := start(t, server, "a", func(c *stream.SubscriberConfig) {
		c.MaxIdleTime, c.ClaimInterval = 100*time.Millisecond, 20*time.Millisecond
	})
	for range 2 {
		w.next().Ack()
	}
	eventually(t, "nothing is pending", func() bool { return len(pending(t, client)) == 0 })
}

func TestReaderWaitsAfterAPartialBatch(t *testing.T) {
	t.Parallel()
	const rounds = 50
	server := redistest.Start(t)
	client, hook := server.Client(), &counted{}
	w := start(t, server, "a", func(c *stream.SubscriberConfig) { c.Client.AddHook(hook) })
	began := time.Now()
	for range rounds {
		publish(t, client, 1)
		w.next().Ack()
	}
	n := hook.takes.Load()
	polls := int64(time.Since(began)/(100*time.Millisecond)) + 3 // the due index is polled at this interval
	if n > rounds+polls {
		t.Errorf("%d takes for %d entries that came one at a time; want one for each, and %d polls at most", n, rounds, polls)
	}
}

func TestDueEntriesAreTakenInGrowingBatches(t *testing.T) {
	t.Parallel()
	const total = 600
	ctx := context.Background()
	server := redistest.Start(t)
	client, hook := server.Client(), &counted{}
	w := start(t, server, "a", func(c *stream.SubscriberConfig) {
		c.MaxIdleTime = time.Minute
		c.Client.AddHook(hook)
	})
	publish(t, client, total)
	var all []*message.Message
	for range total {
		all = append(all, w.next())
	}
	for _, m := range all {
		m.Metadata.Set(stream.MetadataUncounted, "true")
		delay.Message(m, delay.For(time.Hour))
		m.Nack()
	}
	eventually(t, "all are parked", func() bool { return pending(t, client)["(parked)"] == total })
	moments := make([]redis.Z, total)
	for i, m := range all {
		moments[i] = redis.Z{Score: 1, Member: delivery(t, m).Entry()}
	}
	before := hook.takes.Load()
	client.ZAdd(ctx, due, moments...)
	for range total {
		w.next().Ack()
	}
	if n := hook.takes.Load() - before; n > total/20 {
		t.Errorf("%d takes for %d due entries; want %d at most", n, total, total/20)
	}
	clean(t, client)
}
