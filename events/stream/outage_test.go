package stream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

func TestMissingGroupIsRecreatedFromTheFirstEntry(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, lose := range map[string]func(redis.UniversalClient){
		"the group":  func(c redis.UniversalClient) { c.XGroupDestroy(ctx, topic, group) },
		"everything": func(c redis.UniversalClient) { c.Del(ctx, topic, due, failures) },
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			client := server.Client()
			w := start(t, server, "a", nil)
			publish(t, client, 1)
			w.next().Ack()
			clean(t, client)
			lose(client)
			publishOne(t, client, "after")
			for last := ""; last != "after"; {
				m := w.next()
				last = m.UUID
				m.Ack()
			}
			if w.log.count("consumer group recreated") != 1 {
				t.Errorf("log:\n%s", w.log)
			}
		})
	}
}

func TestRedisRestartLosesNothing(t *testing.T) {
	t.Parallel()
	total, restarts := testenv.Form(1000, 2000), testenv.Form(2, 3)
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	client := server.Client()
	short := func(c *stream.SubscriberConfig) { c.MaxIdleTime = time.Second }
	workers := []*worker{start(t, server, "a", short), start(t, server, "b", short)}

	var mu sync.Mutex
	settled := make(map[string]int)
	enough := func(n int) bool { mu.Lock(); defer mu.Unlock(); return len(settled) >= n }
	var handlers sync.WaitGroup
	stop := make(chan struct{})
	for _, w := range workers {
		handlers.Go(func() {
			for {
				select {
				case <-stop:
					return
				case m, open := <-w.messages:
					if !open {
						return
					}
					handlers.Go(func() {
						d, _ := stream.DeliveryOf(m)
						out := stream.Output{Stream: results, Message: message.NewMessage(m.UUID, []byte("done"))}
						if err := d.Settle(m.Context(), stream.Settlement{Outputs: []stream.Output{out}}); err != nil {
							m.Nack()
							return
						}
						mu.Lock()
						settled[m.UUID]++
						mu.Unlock()
						m.Ack()
					})
				}
			}
		})
	}
	published := make(chan struct{})
	go func() {
		defer close(published)
		p, _ := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
		for i := range total {
			m := message.NewMessage(fmt.Sprintf("m%d", i), []byte("{}"))
			for p.Publish(topic, m) != nil {
				time.Sleep(5 * time.Millisecond)
			}
		}
	}()
	for i := range restarts {
		eventually(t, "work goes on", func() bool { return enough((i + 1) * total / (restarts + 2)) })
		server.Stop()
		if i == 0 {
			eventually(t, "all workers notice", func() bool {
				return !slices.ContainsFunc(workers, func(w *worker) bool { away, _ := w.outages(); return away == 0 })
			})
		}
		server.Restart()
	}
	<-published
	eventually(t, "all is settled", func() bool { return enough(total) })
	// Handlers continue until nothing is left, because duplicates may be delivered last.
	clean(t, client)
	close(stop)
	handlers.Wait()

	counts := make(map[any]int)
	for _, e := range entries(t, client, results) {
		counts[e.Values["_watermill_message_uuid"]]++
	}
	// A message that the publisher added twice, after a lost reply, is two entries with two results.
	for _, e := range entries(t, client, topic) {
		counts[e.Values["_watermill_message_uuid"]]--
	}
	for id, n := range counts {
		if n != 0 {
			t.Errorf("%v has %+d results more than entries", id, n)
		}
	}
	for _, w := range workers {
		w.backAgain(restarts + 1)
	}
}

func TestOutOfMemoryRedisDeliversNothingUntilItRecovers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.StartReal(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	publish(t, client, 1)
	w.next().Ack()
	clean(t, client)
	// Add before setting the limit, which would refuse it, and atomically, so that no worker reads in between.
	pipe := client.TxPipeline()
	pipe.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: []any{"repo", "x/y"}})
	pipe.ConfigSet(ctx, "maxmemory", "1")
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the worker sees it", func() bool { away, _ := w.outages(); return away == 1 })
	w.none(50 * time.Millisecond)
	if n := len(pending(t, client)); n != 0 {
		t.Fatal("an entry was taken without a due moment")
	}
	client.ConfigSet(ctx, "maxmemory", "0")
	w.next().Ack()
	clean(t, client)
}

func TestDeletedPendingEntryIsForgotten(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	publish(t, client, 2)
	m := w.next()
	if err := client.XDel(context.Background(), topic, delivery(t, m).Entry()).Err(); err != nil {
		t.Fatal(err)
	}
	m.Nack()
	w.next().Ack()
	clean(t, client)
}

func TestSettleFailsAfterDataLoss(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", func(c *stream.SubscriberConfig) { c.Window = 1 })
	publish(t, client, 1)
	m := w.next()
	pipe := client.TxPipeline() // simulates data loss, after which the new group has read beyond m's entry
	pipe.Del(ctx, topic, due, failures)
	pipe.XAdd(ctx, &redis.XAddArgs{Stream: topic, ID: "9999999999999-0", Values: []any{"repo", "x/y"}})
	pipe.XGroupCreate(ctx, topic, group, "0")
	pipe.XReadGroup(ctx, &redis.XReadGroupArgs{Group: group, Consumer: "b", Streams: []string{topic, ">"}, Block: -1})
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	if err := delivery(t, m).Settle(ctx, result()); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("Settle: %v; want ErrNotOwner, for nothing was published", err)
	}
	m.Nack()
}

func TestSettleSucceedsAfterLostReplyAndTrim(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	publish(t, client, 1)
	m := w.next()
	if err := client.XTrimMaxLen(ctx, topic, 0).Err(); err != nil {
		t.Fatal(err)
	}
	w.gate.loseReply.Store(1)
	if err := delivery(t, m).Settle(ctx, result()); err != nil {
		t.Fatal(err)
	}
	m.Ack()
	clean(t, client)
	if n := length(t, client, results); n != 1 {
		t.Errorf("%d results; want 1", n)
	}
}

func TestAckOfALostDeliveryDoesNotAckTheNext(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	publish(t, client, 2)
	w := start(t, server, "a", func(c *stream.SubscriberConfig) { c.MaxIdleTime = 300 * time.Millisecond })
	eventually(t, "both are delivered", func() bool { return pending(t, client)["a"] == 2 })
	m := w.next()
	// The group is recreated, but the reader is busy handing out the other message: the heartbeat first sees
	// that the entry has no owner, and only then is it read again.
	pipe := client.TxPipeline()
	pipe.XGroupDestroy(ctx, topic, group)
	pipe.XGroupCreate(ctx, topic, group, "0")
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	<-m.Context().Done()
	eventually(t, "both are read again", func() bool { return pending(t, client)["a"] == 2 })
	m.Ack() // as a router does after ErrNotOwner
	seen := map[string]bool{}
	for !seen["m0"] || !seen["m1"] {
		again := w.next()
		seen[again.UUID] = true
		again.Ack()
	}
	clean(t, client)
}

func TestLiveConsumersKeepTheirEntriesAfterALongOutage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	short := func(c *stream.SubscriberConfig) { c.MaxIdleTime = 1200 * time.Millisecond }
	a := start(t, server, "a", short)
	publish(t, client, 1)
	m := a.next()
	b := start(t, server, "b", short)
	a.gate.cut.Store(true)
	b.gate.cut.Store(true)
	time.Sleep(1500 * time.Millisecond) // longer than the visibility timeout of m's entry
	b.gate.cut.Store(false)
	eventually(t, "b is back", func() bool { _, back := b.outages(); return back == 1 })
	b.none(20 * time.Millisecond)
	a.gate.cut.Store(false)
	b.none(1500 * time.Millisecond)
	if err := m.Context().Err(); err != nil {
		t.Errorf("the message's context: %v", context.Cause(m.Context()))
	}
	m.Ack()
	clean(t, client)
}

func TestLostDueIndexTakesNothingFromALiveConsumer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	short := func(c *stream.SubscriberConfig) { c.MaxIdleTime, c.ClaimInterval = 2*time.Second, 10*time.Millisecond }
	a := start(t, server, "a", short)
	publish(t, client, 1)
	m := a.next()
	b := start(t, server, "b", short)
	b.none(2500 * time.Millisecond) // by now the entry is older than the visibility timeout
	for range 10 {
		client.Del(context.Background(), due)
		b.none(40 * time.Millisecond)
	}
	b.none(2500 * time.Millisecond)
	if err := m.Context().Err(); err != nil {
		t.Errorf("the message's context: %v", context.Cause(m.Context()))
	}
	m.Ack()
	clean(t, client)
}

func TestBrokenReaderFallsBackToPolling(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	broken := &gate{}
	broken.cut.Store(true)
	w := start(t, server, "a", func(c *stream.SubscriberConfig) { c.Reader.AddHook(broken) })
	eventually(t, "it is reported", func() bool { return w.log.count("cannot wait for new entries") == 1 })
	w.none(500 * time.Millisecond)
	publish(t, client, 1)
	w.next().Ack()
	clean(t, client)
	if away, back := w.outages(); away != 0 || back != 0 {
		t.Errorf("Redis went away %d times and came back %d times; want neither; log:\n%s", away, back, w.log)
	}
}
