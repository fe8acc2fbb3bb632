package stream_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

func TestUnparkIgnoresStaleEntriesAfterGroupIsRecreated(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	publishKeyed(t, client, "hot", 3)
	a := start(t, server, "a", keyed(8, time.Minute))
	first := a.next()
	eventually(t, "two are parked", func() bool { return pending(t, client)["(parked)"] == 2 })
	b := start(t, server, "b", func(c *stream.SubscriberConfig) { c.MaxIdleTime = time.Minute }) // without keys, to have all at once
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
	if n := client.HLen(ctx, failures).Val(); n != 0 {
		t.Errorf("%d entries have failed attempts", n)
	}
}

func TestPageOfHugeSiblingsIsShort(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	huge := []byte(strings.Repeat("x", 1<<20))
	for i := range 21 {
		m := message.NewMessage(fmt.Sprintf("huge-%d", i), huge)
		m.Metadata.Set("key", "huge")
		publishAll(t, client, m)
	}
	w := start(t, server, "a", keyed(8, time.Minute))
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
	m.Ack()
}

func TestDeferredSiblingsWaitTogether(t *testing.T) {
	t.Parallel()
	ctx, server := context.Background(), redistest.Start(t)
	client := server.Client()
	publishKeyed(t, client, "hot", 5)
	w := start(t, server, "a", keyed(8, time.Minute))
	m := w.next()
	eventually(t, "the rest is parked", func() bool { return pending(t, client)["(parked)"] == 4 })
	d := delivery(t, m)
	siblings := allSiblings(t, d, 100)
	var all []string
	for _, s := range siblings {
		all = append(all, s.Entry)
	}
	if err := d.Defer(ctx, append(all[:3:3], d.Entry(), "1-1"), time.Hour); err != nil {
		t.Fatal(err)
	}
	m.Ack()
	m = w.next()
	if m.UUID != siblings[3].Message.UUID {
		t.Fatalf("%s is next; want %s, which was not deferred", m.UUID, siblings[3].Message.UUID)
	}
	w.none(300 * time.Millisecond)
	d = delivery(t, m)
	if n := len(allSiblings(t, d, 100)); n != 3 {
		t.Errorf("%d siblings; want those that were deferred", n)
	}
	if err := d.Defer(ctx, all[:2], 0); err != nil {
		t.Fatal(err)
	}
	m.Ack()
	for _, want := range siblings[:2] {
		m = w.next()
		if d := delivery(t, m); m.UUID != want.Message.UUID || d.Attempt() != 1 {
			t.Errorf("%s is next, attempt %d; want the first of %s", m.UUID, d.Attempt(), want.Message.UUID)
		}
		m.Ack()
	}
	w.none(100 * time.Millisecond)
	if n := client.ZCard(ctx, parkedIndex).Val(); n != 1 {
		t.Errorf("%d entries in the parked index; want the one that is still deferred", n)
	}
}

func TestHastenedEntriesAreDueNow(t *testing.T) {
	t.Parallel()
	ctx, server := context.Background(), redistest.Start(t)
	client := server.Client()
	publishKeyed(t, client, "hot", 3)
	w := start(t, server, "a", keyed(8, time.Minute))
	hasten := func(key string) {
		t.Helper()
		if err := stream.Hasten(ctx, client, prefix, topic, group, key, 10); err != nil {
			t.Fatal(err)
		}
	}

	failed := w.next()
	if err := delivery(t, failed).Nack(ctx, time.Hour, true); err != nil {
		t.Fatal(err)
	}
	failed.Ack()
	inFlight := w.next()
	hasten("hot") // changes neither what is in flight nor what may run next
	w.none(300 * time.Millisecond)
	inFlight.Ack()

	deferred := w.next()
	if err := delivery(t, deferred).Nack(ctx, time.Hour, false); err != nil {
		t.Fatal(err)
	}
	deferred.Ack()
	eventually(t, "all are parked", func() bool { return pending(t, client)["(parked)"] == 2 })
	hasten("cold")
	w.none(300 * time.Millisecond)
	hasten("hot")
	if m := w.next(); m.UUID != deferred.UUID {
		t.Errorf("%s is next; want %s, which did not fail", m.UUID, deferred.UUID)
	} else {
		m.Ack()
	}
	w.none(300 * time.Millisecond)
	if err := stream.Hasten(ctx, client, prefix, "nothing", group, "hot", 10); err != nil {
		t.Errorf("a stream that does not exist: %v", err)
	}
}
