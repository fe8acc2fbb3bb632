package stream_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

func TestSiblingTakenByThisConsumerMeanwhileIsSkipped(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	publishKeyed(t, client, "hot", 2)
	w := start(t, server, "a", keyed(8, 2, time.Minute))
	first, second := w.next(), w.next()
	if err := delivery(t, second).Nack(ctx, time.Minute, false); err != nil {
		t.Fatal(err)
	}
	second.Nack()
	siblings := allSiblings(t, delivery(t, first), 10)
	if len(siblings) != 1 {
		t.Fatalf("siblings: %v; want the one that is parked", siblings)
	}
	client.ZAdd(ctx, due, redis.Z{Score: 1, Member: siblings[0].Entry})
	again := w.next()
	n, err := delivery(t, first).SettleSiblings(ctx, nil, []stream.SiblingSettlement{{Sibling: siblings[0], Outputs: result().Outputs}})
	if n != 0 || err != nil || client.XLen(ctx, results).Val() != 0 {
		t.Errorf("%d settled, %v; want it left to its handler, which knows nothing of that", n, err)
	}
	if err := delivery(t, again).Settle(ctx, result()); err != nil {
		t.Error(err)
	}
	again.Ack()
	first.Ack()
	nothingParked(t, client)
}

func TestEntrySettledBySiblingCannotBeSettledAgain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	publishKeyed(t, client, "hot", 3)
	w := start(t, server, "a", keyed(8, 3, time.Minute))
	first, second, third := w.next(), w.next(), w.next()
	d := delivery(t, first)
	var batch []stream.SiblingSettlement
	for _, s := range allSiblings(t, d, 10) {
		if s.Message.UUID == second.UUID {
			batch = append(batch, stream.SiblingSettlement{Sibling: s, Outputs: result().Outputs})
		}
	}
	if n, err := d.SettleSiblings(ctx, nil, batch); n != 1 || err != nil {
		t.Fatalf("%d settled, %v", n, err)
	}
	if err := delivery(t, second).Settle(ctx, result()); !errors.Is(err, stream.ErrSettled) {
		t.Errorf("%v; want ErrSettled", err)
	}
	client.XAck(ctx, topic, group, delivery(t, third).Entry()) // as if a settlement's reply had been lost
	if err := delivery(t, third).Settle(ctx, result()); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("%v; want ErrNotOwner: what this one was to settle was not written", err)
	}
	if n := length(t, client, results); n != 1 {
		t.Errorf("%d results; want 1", n)
	}
	for _, m := range []*message.Message{first, second, third} {
		m.Ack()
	}
}

func TestUnparkIgnoresStaleEntriesAfterGroupIsRecreated(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	publishKeyed(t, client, "hot", 3)
	a := start(t, server, "a", keyed(8, 1, time.Minute))
	first := a.next()
	eventually(t, "two are parked", func() bool { return pending(t, client)["(parked)"] == 2 })
	b := start(t, server, "b", keyed(8, 8, time.Minute))
	a.gate.cut.Store(true)
	client.XGroupDestroy(ctx, topic, group) // makes the parked index stale
	seen := map[string]*message.Message{}
	for len(seen) < 3 {
		m := b.next()
		seen[m.UUID] = m
	}
	a.gate.cut.Store(false)
	first.Ack() // too late, but frees capacity
	eventually(t, "the parked index is cleaned up", func() bool { return client.Exists(ctx, parkedIndex, labels).Val() == 0 })
	b.none(300 * time.Millisecond)
	a.none(100 * time.Millisecond)
	for _, m := range seen {
		if m.Context().Err() != nil {
			t.Errorf("%s is taken from its handler: %v", m.UUID, context.Cause(m.Context()))
		}
		m.Ack()
	}
	if n := client.HLen(ctx, tries).Val(); n != 0 {
		t.Errorf("%d entries have failed attempts", n)
	}
}

func TestPageOfHugeSiblingsIsShort(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	p, err := stream.NewPublisher(stream.PublisherConfig{Redis: client})
	if err != nil {
		t.Fatal(err)
	}
	huge := []byte(strings.Repeat("x", 1<<20))
	for i := range 21 {
		m := message.NewMessage(fmt.Sprintf("huge-%d", i), huge)
		m.Metadata.Set("key", "huge")
		if err := p.Publish(topic, m); err != nil {
			t.Fatal(err)
		}
	}
	w := start(t, server, "a", keyed(8, 1, time.Minute))
	m := w.next()
	eventually(t, "the rest is parked", func() bool { return pending(t, client)["(parked)"] == 20 })
	d := delivery(t, m)
	page, next, err := d.Siblings(context.Background(), "", 100)
	if err != nil || len(page) == 0 || len(page) > 8 || next == "" {
		t.Errorf("%d at once, next %q, %v; want a few", len(page), next, err)
	}
	if n := len(allSiblings(t, d, 100)); n != 20 {
		t.Errorf("%d siblings in all; want 20", n)
	}
	newest, err := d.Newest(context.Background(), 100)
	if err != nil || len(newest) == 0 || len(newest) > 8 || newest[0].Message.UUID != "huge-20" {
		t.Errorf("%d newest, %v; want a few, the newest first", len(newest), err)
	}
	m.Ack()
}
