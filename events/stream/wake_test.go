package stream_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

func TestWake(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", keyed(8, time.Minute))
	publishKeyed(t, client, "key", 3)
	nack := func(counted bool) *message.Message {
		msg := w.next()
		if err := delivery(t, msg).Nack(ctx, time.Hour, counted); err != nil {
			t.Fatal(err)
		}
		msg.Ack() // has no effect
		return msg
	}
	waiting := nack(false)
	nack(true)
	owned := w.next()
	eventually(t, "two wait", func() bool { return pending(t, client)["(parked)"] == 2 })
	w.none(100 * time.Millisecond)
	score := client.ZScore(ctx, due, delivery(t, owned).Entry()).Val()

	woken, err := w.Wake(ctx, topic, []stream.Waiter{{Key: "absent"}, {Key: "key"}, {Key: "another"}})
	if err != nil || fmt.Sprint(woken) != "[false true false]" {
		t.Fatalf("woken: %v, %v; want only key to have entries that wait", woken, err)
	}
	w.none(100 * time.Millisecond) // its key is in flight
	if now := client.ZScore(ctx, due, delivery(t, owned).Entry()).Val(); now != score {
		t.Errorf("the owned entry is due at %.0f; want %.0f as before", now, score)
	}
	owned.Ack()
	again := w.next()
	if d := delivery(t, again); again.UUID != waiting.UUID || d.Attempt() != 1 {
		t.Errorf("%s comes, attempt %d; want %s, which waited an hour, as attempt 1", again.UUID, d.Attempt(), waiting.UUID)
	}
	w.none(100 * time.Millisecond) // the failed one keeps its delay
	again.Ack()
}

func TestWakeAfterAnEarlierFailure(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	w := start(t, server, "a", keyed(64, time.Minute))
	publishKeyed(t, server.Client(), "key", 5)
	nack := func(m *message.Message, delay time.Duration, failed bool) {
		if err := delivery(t, m).Nack(ctx, delay, failed); err != nil {
			t.Fatal(err)
		}
		m.Ack() // has no effect
	}
	for range 4 { // older than the one that waits
		nack(w.next(), time.Hour, true)
	}
	nack(w.next(), 0, true)
	again := w.next()
	nack(again, time.Hour, false)
	if _, err := w.Wake(ctx, topic, []stream.Waiter{{Key: "key"}}); err != nil {
		t.Fatal(err)
	}
	woken := w.next()
	if d := delivery(t, woken); woken.UUID != again.UUID || d.Attempt() != 2 {
		t.Errorf("%s comes, attempt %d; want %s, which failed once before it had to wait", woken.UUID, d.Attempt(), again.UUID)
	}
	w.none(100 * time.Millisecond)
	woken.Ack()
}

func TestWakeReachesTheNewest(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", keyed(256, time.Minute))
	const total = 12
	publishKeyed(t, client, "key", total)
	var all []*message.Message
	for range total {
		msg := w.next()
		all = append(all, msg)
		if err := delivery(t, msg).Nack(context.Background(), time.Hour, false); err != nil {
			t.Fatal(err)
		}
		msg.Ack() // has no effect
	}

	if _, err := w.Wake(context.Background(), topic, []stream.Waiter{{Key: "key"}}); err != nil {
		t.Fatal(err)
	}
	const woken = 8
	var got []string
	for range woken {
		msg := w.next()
		got = append(got, msg.UUID)
		msg.Ack()
	}
	if newest := all[total-1].UUID; !slices.Contains(got, newest) {
		t.Errorf("%v come; want %s among them", got, newest)
	}
	w.none(100 * time.Millisecond) // not all of a key that has many
}

func TestWakeFindsMatchesAmongMany(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", keyed(512, time.Minute))
	const total = 120 // more than a page
	publishKeyed(t, client, "key", total)
	for range total {
		msg := w.next()
		if err := delivery(t, msg).Nack(ctx, time.Hour, false); err != nil {
			t.Fatal(err)
		}
		msg.Ack() // has no effect
	}
	wake := func(names ...string) bool {
		t.Helper()
		woken, err := w.Wake(ctx, topic, []stream.Waiter{{Key: "key", Match: func(m *message.Message) bool { return slices.Contains(names, m.UUID) }}})
		if err != nil || len(woken) != 1 {
			t.Fatalf("woken: %v, %v", woken, err)
		}
		return woken[0]
	}
	if wake("none of them") {
		t.Error("woken although none matches")
	}
	w.none(100 * time.Millisecond)
	want := []string{"key-5", "key-60", "key-114"} // neither the oldest nor the newest
	if !wake(want...) {
		t.Error("not woken")
	}
	var got []string
	for range want {
		msg := w.next()
		got = append(got, msg.UUID)
		msg.Ack()
	}
	slices.Sort(got)
	if fmt.Sprint(got) != "[key-114 key-5 key-60]" {
		t.Errorf("%v come; want %v", got, want)
	}
	w.none(100 * time.Millisecond)
}
