package router_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/logtest"
	"lockstep/internal/testenv"
	"lockstep/router"
)

const failures = prefix + "failures:changes:workers"

// killed publishes a message that was handled at this many deaths of its process. redeliver makes it due.
func killed(t *testing.T, client redis.UniversalClient, id string, deaths int) (redeliver func()) {
	t.Helper()
	ctx := t.Context()
	client.XGroupCreateMkStream(ctx, topic, "workers", "0")
	publishTo(t, newPublisher(t, client), topic, id, []byte("k"))
	read, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "workers", Consumer: "killed", Streams: []string{topic, ">"}, Block: -1}).Result()
	if err != nil {
		t.Fatal(err)
	}
	entry := read[0].Messages[0].ID
	client.HSet(ctx, failures, entry+":deaths", deaths)
	due := func(at time.Time) {
		if err := client.ZAdd(ctx, stream.DueKey(prefix, topic, "workers"), redis.Z{Score: float64(at.UnixMilli()), Member: entry}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	due(time.Now().Add(time.Hour))
	return func() { due(time.UnixMilli(0)) }
}

func TestMessageThatKillsItsProcessIsPoison(t *testing.T) {
	t.Parallel()
	for deaths, reason := range map[int]string{0: "", 1: "", 2: "", 3: "poison", 4: "poison"} {
		t.Run(strings.Repeat("I", deaths), func(t *testing.T) {
			t.Parallel()
			client := startRedis(t)
			killed(t, client, "m1", deaths)()
			var handled, poisoned atomic.Int64
			run(t, router.Route{Name: "r", Topic: topic, Subscriber: newSubscriber(t, client),
				Locker: newLocker(t, client, time.Second), Request: byPayload,
				Handler: func(*message.Message) ([]*message.Message, error) {
					handled.Add(1)
					return nil, nil
				},
				OnPoison: func(msg *message.Message, err error) {
					if len(router.Leases(msg)) == 1 && err != nil {
						poisoned.Add(1)
					}
				},
				Dispose: router.Disposer{Log: quiet()}})
			stopWhen(t, func() bool { return client.XPending(t.Context(), topic, "workers").Val().Count == 0 })
			letters, _, err := stream.NewDeadLetters(client, prefix).List(t.Context(), stream.Query{Reason: "poison"})
			if err != nil {
				t.Fatal(err)
			}
			if n := int64(len(letters)); (n == 1) != (reason != "") || handled.Load() != 1-n || poisoned.Load() != n {
				t.Errorf("%d letters, handled %d times, OnPoison under the lease %d times", n, handled.Load(), poisoned.Load())
			}
			if left := client.HGetAll(t.Context(), failures).Val(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestSuspectRunsAlone has other messages before, beside and after one that was handled at two deaths.
func TestSuspectRunsAlone(t *testing.T) {
	t.Parallel()
	client := startRedis(t)
	redeliver := killed(t, client, "suspect", 2)
	var log logtest.Buffer
	var running atomic.Int64
	began, release := make(chan string, 10), map[string]chan struct{}{"before": make(chan struct{}), "suspect": make(chan struct{})}
	run(t, router.Route{Name: "r", Topic: topic, Subscriber: newSubscriber(t, client),
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			n := running.Add(1)
			defer running.Add(-1)
			if msg.UUID == "suspect" && n > 1 {
				t.Errorf("%d handlers run beside it", n-1)
			}
			began <- msg.UUID
			if ch := release[msg.UUID]; ch != nil {
				<-ch
			}
			if msg.UUID == "suspect" && running.Load() > 1 {
				t.Error("another handler began beside it")
			}
			return nil, nil
		},
		Dispose: router.Disposer{Log: slog.New(slog.NewTextHandler(&log, nil)), Retry: router.Retry{Base: time.Millisecond}}})
	refused := func(id string) {
		t.Helper()
		publishTo(t, newPublisher(t, client), topic, id, nil)
		stopWhen(t, func() bool { return strings.Contains(log.String(), "job="+id) })
	}
	expect := func(id string) {
		t.Helper()
		if got := testenv.Receive(t, began, id); got != id {
			t.Fatalf("%s began, want %s", got, id)
		}
	}
	publishTo(t, newPublisher(t, client), topic, "before", nil)
	expect("before")
	redeliver()
	for i := 0; !strings.Contains(log.String(), "runs alone"); i++ { // until the suspect waits
		publishTo(t, newPublisher(t, client), topic, "beside", nil)
		time.Sleep(10 * time.Millisecond)
		if i > 1000 {
			t.Fatal("nothing is refused while the suspect waits")
		}
	}
	for len(began) > 0 {
		<-began
	}
	close(release["before"])
	expect("suspect")
	refused("after")
	close(release["suspect"])
	stopWhen(t, func() bool { return client.XPending(context.Background(), topic, "workers").Val().Count == 0 })
}

// TestSuspectThatEndsIsNone has the process live through a message that was handled at two deaths.
func TestSuspectThatEndsIsNone(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func() error{
		"fails":  func() error { return events.Errorf(events.Retryable, events.ClassInternal, "fails") },
		"waits":  func() error { return events.Errorf(events.Contention, events.ClassBusy, "waits") },
		"panics": func() error { panic("panics") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := startRedis(t)
			killed(t, client, "suspect", 2)()
			deaths := make(chan int, 2)
			run(t, router.Route{Name: "r", Topic: topic, Subscriber: newSubscriber(t, client),
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					d, _ := stream.DeliveryOf(msg)
					deaths <- d.Deaths()
					if len(deaths) == 1 {
						return nil, fails()
					}
					return nil, nil
				},
				Dispose: router.Disposer{Log: quiet(), Retry: router.Retry{Base: time.Millisecond}}})
			stopWhen(t, func() bool { return client.XPending(t.Context(), topic, "workers").Val().Count == 0 })
			if first, then := <-deaths, <-deaths; first != 2 || then != 0 {
				t.Errorf("%d deaths, then %d; want 2 and 0", first, then)
			}
		})
	}
}

// TestSuspectBesideOthers has suspects that are not alone, or not any more. It sets variables, so it is not parallel.
func TestSuspectBesideOthers(t *testing.T) {
	for name, others := range map[string]bool{"others run too long": true, "it runs too long": false} {
		t.Run(name, func(t *testing.T) {
			if others {
				router.SetAlone(t, time.Millisecond, time.Minute)
			} else {
				router.SetAlone(t, time.Minute, time.Millisecond)
			}
			client := startRedis(t)
			redeliver := killed(t, client, "suspect", 2)
			another := killed(t, client, "another", 2)
			var log logtest.Buffer
			began, release := make(chan string, 10), make(chan struct{})
			run(t, router.Route{Name: "r", Topic: topic, Subscriber: newSubscriber(t, client),
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					began <- msg.UUID
					<-release
					return nil, nil
				},
				Dispose: router.Disposer{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}})
			first, second := redeliver, func() { publishTo(t, newPublisher(t, client), topic, "other", nil) }
			want := []string{"suspect", "other"}
			if others {
				first, second, want = second, first, []string{"other", "suspect"}
			}
			first()
			got := []string{testenv.Receive(t, began, "message")}
			if !others { // until a death of the suspect does not count any more
				stopWhen(t, func() bool { return !slices.Contains(client.HVals(t.Context(), failures).Val(), "3") })
			}
			second()
			got = append(got, testenv.Receive(t, began, "message"))
			if !slices.Equal(got, want) {
				t.Fatalf("%q began, want %q", got, want)
			}
			for field, deaths := range client.HGetAll(t.Context(), failures).Val() {
				if deaths != "1" && deaths != "2" { // the other message's, and the suspects'
					t.Errorf("%s: %s", field, deaths)
				}
			}
			another()
			stopWhen(t, func() bool { return strings.Contains(log.String(), "runs first") })
			close(release)
			stopWhen(t, func() bool { return client.XPending(t.Context(), topic, "workers").Val().Count == 1 })
		})
	}
}

// TestDeathsAreOfWhatHoldsTheLease has a message wait for the lease that another one holds.
func TestDeathsAreOfWhatHoldsTheLease(t *testing.T) {
	t.Parallel()
	client := startRedis(t)
	began, end := newSignal(1), make(chan struct{})
	run(t, router.Route{Name: "r", Topic: topic, Subscriber: newSubscriber(t, client),
		Locker: newLocker(t, client, time.Minute), Request: byPayload,
		Handler: func(*message.Message) ([]*message.Message, error) {
			began.one()
			<-end
			return nil, nil
		},
		Dispose: router.Disposer{Log: quiet()}})
	publishTo(t, newPublisher(t, client), topic, "first", []byte("k"))
	testenv.Receive(t, began.all, "message")
	publishTo(t, newPublisher(t, client), topic, "second", []byte("k"))
	stopWhen(t, func() bool { return client.XPending(t.Context(), topic, "workers").Val().Count == 2 })
	if counts := client.HGetAll(t.Context(), failures).Val(); len(counts) != 1 {
		t.Errorf("%v; want a death, in advance, of the first only", counts)
	}
	close(end)
	stopWhen(t, func() bool { return client.Exists(t.Context(), failures).Val() == 0 })
}
