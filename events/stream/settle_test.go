package stream_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

const (
	results = "lockstep:{0}:results"
	state   = "lockstep:{0}:repo:acme/widgets"
	lease   = "lockstep:{0}:lock:acme/widgets"
)

func result() stream.Settlement {
	return stream.Settlement{
		Outputs: []stream.Output{{Stream: results, Message: message.NewMessage("r1", []byte("\x00\xffbinary"))}},
		State:   []stream.HashUpdate{{Key: state, Fields: map[string]string{"head": "abc", "fence": "7"}}},
	}
}

func TestSettleIsAtomicAndHappensOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	publish(t, client, 1)
	m := w.next()
	d := delivery(t, m)
	w.gate.loseReply.Store(1)
	if err := d.Settle(m.Context(), result()); err != nil {
		t.Fatalf("with a lost reply: %v", err)
	}
	if err := d.Settle(m.Context(), result()); err != nil {
		t.Fatalf("again: %v", err)
	}
	if err := d.DeadLetter(m.Context(), "", "", "", stream.Settlement{}); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("DeadLetter after Settle: %v; want ErrNotOwner", err)
	}
	clean(t, client)
	m.Nack() // too late to have an effect
	w.none(150 * time.Millisecond)
	all := entries(t, client, results)
	if len(all) != 1 || all[0].Values["_watermill_message_uuid"] != "r1" || all[0].Values["payload"] != "\x00\xffbinary" {
		t.Errorf("results: %v; want one, as given", all)
	}
	if got := client.HGetAll(context.Background(), state).Val(); got["head"] != "abc" || got["fence"] != "7" {
		t.Errorf("state: %v", got)
	}
	clean(t, client)
}

func TestEntryAcknowledgedElsewhereCannotBeSettled(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	publish(t, client, 1)
	m := w.next()
	client.XAck(ctx, topic, group, delivery(t, m).Entry())
	if err := delivery(t, m).Settle(ctx, result()); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("%v, want ErrNotOwner", err)
	}
	if n := client.Exists(ctx, results, state).Val(); n != 0 {
		t.Errorf("%d results and states were written, want none", n)
	}
	m.Ack()
}

func TestSettleRequiresTheLease(t *testing.T) {
	t.Parallel()
	const fence = uint64(1795223511284000)
	for name, tc := range map[string]struct {
		owner   string
		fence   uint64
		expires time.Duration
		gone    bool
		held    bool
	}{
		"held":          {owner: "me", fence: fence, expires: time.Minute, held: true},
		"expired":       {owner: "me", fence: fence, expires: -time.Millisecond},
		"another owner": {owner: "you", fence: fence, expires: time.Minute},
		"a newer fence": {owner: "me", fence: fence + 1, expires: time.Minute},
		"no lease":      {gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			server := redistest.Start(t)
			client := server.Client()
			w := start(t, server, "a", nil)
			publish(t, client, 1)
			if !tc.gone {
				client.HSet(ctx, lease, "owner", tc.owner, "fence", strconv.FormatUint(tc.fence, 10),
					"expires", time.Now().Add(tc.expires).UnixMicro())
			}
			m := w.next()
			s := result()
			s.Guard = &stream.Guard{Key: lease, Owner: "me", Fence: fence}
			err := delivery(t, m).Settle(ctx, s)
			if tc.held {
				if err != nil {
					t.Fatal(err)
				}
				m.Ack()
				clean(t, client)
				return
			}
			if !errors.Is(err, stream.ErrGuard) {
				t.Fatalf("%v; want ErrGuard", err)
			}
			if n := client.Exists(ctx, results, state).Val(); n != 0 || pending(t, client)["a"] != 1 {
				t.Fatal("something has changed")
			}
			m.Nack() // the delivery is still unfinished
			again := w.next()
			if err := delivery(t, again).Settle(ctx, result()); err != nil {
				t.Fatal(err)
			}
			again.Ack()
			clean(t, client)
		})
	}
}

func TestSettleChecksEverythingBeforeWriting(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	publish(t, client, 1)
	client.Set(ctx, state, "not a hash", 0)
	m := w.next()
	if err := delivery(t, m).Settle(ctx, result()); err == nil {
		t.Fatal("settled into a string")
	}
	if n := client.Exists(ctx, results).Val(); n != 0 || pending(t, client)["a"] != 1 {
		t.Fatal("something has changed")
	}
	client.Del(ctx, state)
	if err := delivery(t, m).Settle(ctx, result()); err != nil {
		t.Fatal(err)
	}
	m.Ack()
	clean(t, client)
}

func TestSettleWithACancelledContextTriesOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	publish(t, client, 1)
	m := w.next()
	ctx, cancel := context.WithCancel(m.Context())
	cancel()
	w.gate.cut.Store(true)
	if err := delivery(t, m).Settle(ctx, result()); !errors.Is(err, context.Canceled) {
		t.Fatalf("without Redis: %v; want context.Canceled", err)
	}
	w.gate.cut.Store(false)
	if err := delivery(t, m).Settle(ctx, result()); err != nil {
		t.Fatalf("finished work is not to be thrown away: %v", err)
	}
	m.Ack()
	clean(t, client)
}

func TestSettleFailsAfterGroupIsRecreated(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", func(c *stream.SubscriberConfig) { c.Window = 1 })
	publish(t, client, 1)
	m := w.next()
	// The window is full, so the new group is not read.
	client.XGroupDestroy(ctx, topic, group)
	if err := delivery(t, m).Settle(ctx, result()); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("without a group: %v; want ErrNotOwner", err)
	}
	client.XGroupCreate(ctx, topic, group, "0")
	m.Ack()
	again := w.next()
	if again.UUID != "m0" {
		t.Fatalf("%s comes; want the message again", again.UUID)
	}
	again.Ack()
	clean(t, client)
}

func TestDeadLetterKeepsTheOriginalFields(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	payload := []byte("\x00\x01\xfe\xff\r\n$5")
	publishAll(t, client, message.NewMessage("odd", payload))
	m := w.next()
	d := delivery(t, m)
	w.gate.loseReply.Store(1)
	if err := d.DeadLetter(ctx, "retries exhausted", events.ClassAuth, "remote says no", result()); err != nil {
		t.Fatal(err)
	}
	m.Ack()
	clean(t, client)
	all := entries(t, client, dead)
	if len(all) != 1 || length(t, client, results) != 1 {
		t.Fatalf("%d dead letters, %d results; want one of each", len(all), length(t, client, results))
	}
	for field, want := range map[string]string{
		"reason": "retries exhausted", "error": "remote says no", "attempts": "1", "stream": topic,
		"group": group, "entry": d.Entry(), "consumer": "a",
		"original:payload": string(payload), "original:_watermill_message_uuid": "odd",
	} {
		if got := all[0].Values[field]; got != want {
			t.Errorf("%s is %q; want %q", field, got, want)
		}
	}
	at, err := strconv.ParseInt(all[0].Values["at"].(string), 10, 64)
	if err != nil || time.Since(time.UnixMilli(at)).Abs() > time.Minute {
		t.Errorf("at is %v", all[0].Values["at"])
	}
}

func TestClearRemovesOtherFields(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	many := make(map[string]string)
	for i := range 5000 {
		many[strconv.Itoa(i)] = "\x00\xff"
	}
	for name, tc := range map[string]struct {
		update stream.HashUpdate
		want   int64
	}{
		"without it, others stay": {stream.HashUpdate{Fields: map[string]string{"head": "new"}}, 2},
		"with it, they go":        {stream.HashUpdate{Fields: map[string]string{"head": "new"}, Clear: true}, 1},
		"and nothing comes":       {stream.HashUpdate{Clear: true}, 0},
		"nothing at all":          {stream.HashUpdate{}, 2},
		"some go, others come":    {stream.HashUpdate{Drop: []string{"other", "not there"}, Fields: map[string]string{"head": "new", "tail": "new"}}, 2},
		"it expires":              {stream.HashUpdate{Fields: map[string]string{"head": "new"}, Expire: time.Hour}, 2},
		"it goes at once":         {stream.HashUpdate{Clear: true, Expire: time.Hour}, 0},
		"thousands come":          {stream.HashUpdate{Fields: many, Clear: true}, 5000},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			client := server.Client()
			w := start(t, server, "a", nil)
			publish(t, client, 1)
			client.HSet(ctx, state, "head", "old", "other", "x")
			m := w.next()
			tc.update.Key = state
			if err := delivery(t, m).Settle(ctx, stream.Settlement{State: []stream.HashUpdate{tc.update}}); err != nil {
				t.Fatal(err)
			}
			m.Ack()
			clean(t, client)
			if n := client.HLen(ctx, state).Val(); n != tc.want {
				t.Errorf("%d fields; want %d", n, tc.want)
			}
			if left := client.PTTL(ctx, state).Val(); (left > 0) != (tc.want > 0 && tc.update.Expire > 0) {
				t.Errorf("it expires in %v", left)
			}
			if head := client.HGet(ctx, state, "head").Val(); tc.update.Fields["head"] != "" && head != "new" {
				t.Errorf("head is %q", head)
			}
		})
	}
}

func TestSettleReleasesALeaseNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	const lock, queue = "lockstep:{0}:lock:k", "lockstep:{0}:lock:k:queue"
	for name, tc := range map[string]struct {
		prepare func(client redis.UniversalClient)
		kept    bool
	}{
		"no waiter":                      {},
		"waiter":                         {prepare: func(c redis.UniversalClient) { c.ZAdd(ctx, queue, redis.Z{Member: "other"}) }, kept: true},
		"a sibling is parked":            {prepare: func(c redis.UniversalClient) { publishKeyed(t, c, "k", 2) }, kept: true},
		"entry of another key is parked": {prepare: func(c redis.UniversalClient) { publishKeyed(t, c, "kk", 2) }},
		"another owner has the lease":    {prepare: func(c redis.UniversalClient) { c.HSet(ctx, lock, "owner", "other") }, kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			client := server.Client()
			client.HSet(ctx, lock, "owner", "me", "fence", "7", "expires", "9000000000000000")
			publishKeyed(t, client, "k", 1)
			if tc.prepare != nil {
				tc.prepare(client)
			}
			w := start(t, server, "a", keyed(16, time.Minute)) // reads all at once
			m := w.next()
			if strings.Contains(name, "parked") {
				eventually(t, "one is parked", func() bool { return client.ZCard(ctx, parkedIndex).Val() > 0 })
			}
			returned := 0
			s := result()
			s.Guard = &stream.Guard{Key: lock, Owner: "me", Fence: 7, Queue: queue}
			s.OnRelease = func() { returned++ }
			err := delivery(t, m).Settle(ctx, s)
			again := delivery(t, m).Settle(ctx, s)
			if gone := !client.HExists(ctx, lock, "owner").Val(); gone == tc.kept || (returned == 1) == tc.kept {
				t.Errorf("lease released: %v, called %d times; %v, %v", gone, returned, err, again)
			}
			m.Ack()
		})
	}
}
