package router_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/router"
	"lockstep/router/observe"
)

const newerChange = `{"specversion":"1.0","id":"n1","source":"/x","type":"lockstep.change.pushed.v2","data":{"repo":{"path":"acme/widgets"}}}`

func TestChangeOfNewerVersionWaitsForNewerWorker(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), startRedis(t)
	left, done := make(chan string, 1000), make(chan string, 10)
	var logged bytes.Buffer
	var mu sync.Mutex
	old := router.Changes{
		Namespace: events.DefaultNamespace, Log: slog.New(slog.NewTextHandler(locked{&mu, &logged}, nil)),
		Handler: func(_ context.Context, job events.Job) (events.Outcome, error) {
			done <- job.Change.ID
			return events.Outcome{Result: job.Result(events.ResultSynced)}, nil
		},
	}
	observer := &observe.Observer{Events: func(e observe.Event) {
		if e.Kind == observe.Ended {
			left <- e.Timeline.Outcome + " " + string(e.Class)
		}
	}}
	dispose := router.Disposer{Failed: old.Failed, Log: quiet(), Retry: router.Retry{MaxAttempts: 1, Base: time.Millisecond}}
	run(t, router.Route{Name: "old", Topic: topic, Subscriber: newSubscriber(t, client), Handler: old.Handle, Observer: observer,
		Locker: newLocker(t, client, time.Second), Request: old.Request, Dispose: dispose})
	pub := newPublisher(t, client)
	publishTo(t, pub, topic, "n1", []byte(newerChange))
	publishTo(t, pub, topic, "m1", changeOf(t, "m1", "acme/widgets"))
	if id := within(t, done, "change"); id != "m1" {
		t.Errorf("handled %s, want m1 without waiting for the newer change", id)
	}
	for within(t, left, "event for the newer change") != "left newer" {
	}
	stopWhen(t, func() bool { // redelivered several times
		p := client.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: topic, Group: "workers", Start: "-", End: "+", Count: 1}).Val()
		return len(p) == 1 && p[0].RetryCount > 5
	})
	if n := client.XLen(ctx, events.DefaultNamespace.Dead()).Val(); n != 0 {
		t.Errorf("%d dead letters, want none", n)
	}

	run(t, router.Route{Name: "new", Topic: topic, Subscriber: newSubscriber(t, client), Dispose: dispose,
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if !strings.Contains(string(msg.Payload), "pushed.v2") {
				return nil, events.Errorf(events.Contention, events.ClassNewer, "not this one")
			}
			done <- msg.UUID
			return router.Commit(msg, stream.Settlement{})
		}})
	if id := within(t, done, "newer change"); id != "n1" {
		t.Errorf("handled %s, want n1", id)
	}
	stopWhen(t, func() bool { return client.XPending(ctx, topic, "workers").Val().Count == 0 })
	mu.Lock()
	defer mu.Unlock()
	if n := strings.Count(logged.String(), "left to a newer version"); n != 1 || !strings.Contains(logged.String(), "lockstep.change.pushed.v2") {
		t.Errorf("logged %d times, want once with the type: %s", n, logged.String())
	}
}

func TestChangeOfNewerVersionBecomesDeadLetterAfterMaxAge(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), startRedis(t)
	changes := router.Changes{Namespace: events.DefaultNamespace, Log: quiet()}
	run(t, router.Route{Name: "old", Topic: topic, Subscriber: newSubscriber(t, client), Handler: changes.Handle,
		Locker: newLocker(t, client, time.Second), Request: changes.Request,
		Dispose: router.Disposer{Failed: changes.Failed, Log: quiet(), Retry: router.Retry{Base: time.Millisecond, MaxAge: 200 * time.Millisecond}}})
	publishTo(t, newPublisher(t, client), topic, "n1", []byte(newerChange))
	stopWhen(t, func() bool { return client.XLen(ctx, events.DefaultNamespace.Dead()).Val() == 1 })
	letter := client.XRange(ctx, events.DefaultNamespace.Dead(), "-", "+").Val()[0].Values
	if letter["reason"] != "too old" || letter["original:payload"] != newerChange {
		t.Errorf("letter %v; want the whole entry, too old", letter)
	}
}

// locked is a writer that is safe for concurrent use.
type locked struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
