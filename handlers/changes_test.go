package handlers_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/handlers"
	"lockstep/internal/testenv"
	"lockstep/router"
)

// worked is the outcome of one change.
type worked struct {
	attempts []int
	results  []events.Result
	dead     []redis.XMessage
	state    map[string]string
}

// work handles one message until it is settled.
func work(t *testing.T, payload []byte, handler handlers.Handler) worked {
	t.Helper()
	ctx, client := context.Background(), startRedis(t)
	var mu sync.Mutex
	var w worked
	changes := handlers.Changes{
		Namespace: events.DefaultNamespace, Source: "/lockstep/worker/w1", Log: quiet(),
		Handler: func(ctx context.Context, job handlers.Job) (handlers.Outcome, error) {
			mu.Lock()
			w.attempts = append(w.attempts, job.Attempt)
			mu.Unlock()
			return handler(ctx, job)
		},
	}
	run(t, router.Route{Name: "changes", Topic: topic, Subscriber: newSubscriber(t, client),
		Handler: changes.Handle, Locker: newLocker(t, client, 5*time.Second), Request: changes.Request,
		Dispose: changes.Dispose(router.Retry{MaxAttempts: 3, Base: time.Millisecond})})
	publishTo(t, newPublisher(t, client), topic, "m1", payload)

	stopWhen(t, func() bool { // until it has an outcome and is no longer pending
		outcomes := client.XLen(ctx, events.DefaultNamespace.Results()).Val() + client.XLen(ctx, events.DefaultNamespace.Dead()).Val()
		return outcomes > 0 && client.XPending(ctx, topic, "workers").Val().Count == 0
	})
	mu.Lock()
	defer mu.Unlock()
	entries, err := client.XRange(ctx, events.DefaultNamespace.Results(), "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		msg := testenv.Must(redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(entry.Values))(t)
		result, err := events.ParseResult(msg.Payload)
		if err != nil {
			t.Fatal(err)
		}
		w.results = append(w.results, result)
	}
	if w.dead, err = client.XRange(ctx, events.DefaultNamespace.Dead(), "-", "+").Result(); err != nil {
		t.Fatal(err)
	}
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	if w.state, err = client.HGetAll(ctx, events.DefaultNamespace.Repo(repo)).Result(); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestDispositions(t *testing.T) {
	t.Parallel()
	synced := func(job handlers.Job) (handlers.Outcome, error) {
		return handlers.Outcome{Result: job.Result(events.ResultSynced), State: map[string]string{"k": "v"}}, nil
	}
	for name, tc := range map[string]struct {
		handler  handlers.Handler
		attempts []int
		result   events.ResultType
		class    events.Class
		dead     string
	}{
		"none": {
			handler:  func(_ context.Context, job handlers.Job) (handlers.Outcome, error) { return synced(job) },
			attempts: []int{1}, result: events.ResultSynced,
		},
		"retryable, once": {
			handler: func(_ context.Context, job handlers.Job) (handlers.Outcome, error) {
				if job.Attempt == 1 {
					return handlers.Outcome{}, errors.New("a hiccup")
				}
				return synced(job)
			},
			attempts: []int{1, 2}, result: events.ResultSynced,
		},
		"retryable, attempts used up": {
			handler: func(context.Context, handlers.Job) (handlers.Outcome, error) {
				return handlers.Outcome{}, events.Errorf(events.Retryable, events.ClassNetwork, "no route")
			},
			attempts: []int{1, 2, 3}, result: events.ResultFailed, class: events.ClassNetwork, dead: "attempts used up",
		},
		"a panic": {
			handler:  func(context.Context, handlers.Job) (handlers.Outcome, error) { panic("oops") },
			attempts: []int{1, 2, 3}, result: events.ResultFailed, class: events.ClassInternal, dead: "attempts used up",
		},
		"permanent": {
			handler: func(context.Context, handlers.Job) (handlers.Outcome, error) {
				return handlers.Outcome{}, events.Errorf(events.Permanent, events.ClassNotFound, "no such repository")
			},
			attempts: []int{1}, result: events.ResultFailed, class: events.ClassNotFound,
		},
		"watch removed": {
			handler: func(context.Context, handlers.Job) (handlers.Outcome, error) {
				return handlers.Outcome{}, &events.Error{Disposition: events.Permanent, Scope: events.ScopeNone, Class: events.ClassBusy, Err: errors.New("docs no longer watches it")}
			},
			attempts: []int{1}, result: events.ResultFailed, class: events.ClassBusy,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := work(t, changeOf(t, "c1", "acme/widgets"), tc.handler)
			if !slices.Equal(w.attempts, tc.attempts) {
				t.Errorf("attempts %v, want %v", w.attempts, tc.attempts)
			}
			if len(w.results) != 1 {
				t.Fatalf("%d results, want one: %+v", len(w.results), w.results)
			}
			r := w.results[0]
			if r.Type != tc.result || r.Class != tc.class || !slices.Equal(r.Deliveries, []string{"c1"}) || r.Attempts != len(tc.attempts) {
				t.Errorf("result %+v", r)
			}
			if (tc.dead != "") != (len(w.dead) == 1) {
				t.Fatalf("%d dead letters: %v", len(w.dead), w.dead)
			}
			if tc.dead != "" && w.dead[0].Values["reason"] != tc.dead {
				t.Errorf("dead letter %v", w.dead[0].Values)
			}
			if (tc.result == events.ResultSynced) != (w.state["k"] == "v") {
				t.Errorf("state %v", w.state)
			}
		})
	}
}

func TestContentionIsNotCountedAsAttempt(t *testing.T) {
	t.Parallel()
	tries := 0
	w := work(t, changeOf(t, "c1", "acme/widgets"), func(_ context.Context, job handlers.Job) (handlers.Outcome, error) {
		if tries++; tries <= 5 { // more often than there are attempts
			return handlers.Outcome{}, events.Errorf(events.Contention, events.ClassBusy, "later")
		}
		return handlers.Outcome{Result: job.Result(events.ResultSynced)}, nil
	})
	if !slices.Equal(w.attempts, []int{1, 1, 1, 1, 1, 1}) || len(w.results) != 1 || len(w.dead) != 0 {
		t.Errorf("attempts %v, %d results, %d dead letters", w.attempts, len(w.results), len(w.dead))
	}
}

func TestMoveWithOneLostLeaseSettlesNothing(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"acme/widgets", "acme/gadgets"} {
		t.Run(lost, func(t *testing.T) {
			ctx, client := context.Background(), startRedis(t)
			tries := 0
			handled := newSignal(2)
			changes := handlers.Changes{Namespace: events.DefaultNamespace, Log: quiet(),
				Handler: func(_ context.Context, job handlers.Job) (handlers.Outcome, error) {
					defer handled.one()
					if tries++; tries == 1 {
						client.HSet(ctx, events.DefaultNamespace.Locks()+lost, "owner", "another", "fence", job.Fence+job.FenceTo)
					}
					return handlers.Outcome{Result: job.Result(events.ResultMoved), StateTo: map[string]string{"try": fmt.Sprint(tries)}}, nil
				},
			}
			run(t, router.Route{Name: "changes", Topic: topic, Subscriber: newSubscriber(t, client),
				Handler: changes.Handle, Locker: newLocker(t, client, 30*time.Second), Request: changes.Request,
				Dispose: changes.Dispose(router.Retry{MaxAttempts: 1, Base: time.Millisecond})})
			publishTo(t, newPublisher(t, client), topic, "m1",
				[]byte(`{"type":"moved","repo":"acme/widgets","to":"acme/gadgets","url":"https://example.com/acme/gadgets.git","id":"c1"}`))
			testenv.Receive(t, handled.all, "second try")
			stopWhen(t, func() bool { return client.XLen(ctx, events.DefaultNamespace.Results()).Val() == 1 })
			if got := client.HGet(ctx, string(events.DefaultNamespace)+"repo:acme/gadgets", "try").Val(); got != "2" {
				t.Errorf("settled by try %q, want the second only", got)
			}
		})
	}
}

// An outcome may have many results: they follow the first in order, and are settled with the state of views.
func TestFurtherResultsAreSettledInOneStep(t *testing.T) {
	t.Parallel()
	const more = 3000
	ctx, client := context.Background(), startRedis(t)
	views := string(events.DefaultNamespace) + "views:acme/"
	client.HSet(ctx, views+"widgets", "old", "1", "kept", "1")
	client.HSet(ctx, views+"gadgets", "kept", "2")
	handled := newSignal(1)
	changes := handlers.Changes{Namespace: events.DefaultNamespace, Source: "/w1", Log: quiet(),
		Handler: func(_ context.Context, job handlers.Job) (handlers.Outcome, error) {
			defer handled.one()
			outcome := handlers.Outcome{
				Result: job.Result(events.ResultMoved), Views: map[string]string{"old": "", "new": "1"}, ViewsTo: map[string]string{"moved": "1"},
			}
			for i := range more {
				result := job.Result(events.ResultView)
				result.ID += fmt.Sprint("/", i)
				outcome.More = append(outcome.More, result)
			}
			return outcome, nil
		},
	}
	run(t, router.Route{Name: "changes", Topic: topic, Subscriber: newSubscriber(t, client),
		Handler: changes.Handle, Locker: newLocker(t, client, 30*time.Second), Request: changes.Request,
		Dispose: changes.Dispose(router.Retry{MaxAttempts: 1, Base: time.Millisecond})})
	publishTo(t, newPublisher(t, client), topic, "m1",
		[]byte(`{"type":"moved","repo":"acme/widgets","to":"acme/gadgets","url":"https://example.com/acme/gadgets.git","id":"c1"}`))
	testenv.Receive(t, handled.all, "the handler")
	stopWhen(t, func() bool { return client.XLen(ctx, events.DefaultNamespace.Results()).Val() == 1+more })
	first := ""
	for i, entry := range client.XRange(ctx, events.DefaultNamespace.Results(), "-", "+").Val() {
		payload, _ := entry.Values["payload"].(string)
		result, err := events.ParseResult([]byte(payload))
		if err != nil || result.Source != "/w1" {
			t.Fatalf("result %d: %+v, %v", i, result, err)
		}
		if i == 0 {
			first = result.ID
		} else if want := fmt.Sprint(first, "/", i-1); result.ID != want {
			t.Fatalf("result %d is %s, want %s", i, result.ID, want)
		}
	}
	if got, want := client.HGetAll(ctx, views+"widgets").Val(), map[string]string{"kept": "1", "new": "1"}; !maps.Equal(got, want) {
		t.Errorf("the views are %v, want %v", got, want)
	}
	if got, want := client.HGetAll(ctx, views+"gadgets").Val(), map[string]string{"kept": "2", "moved": "1"}; !maps.Equal(got, want) {
		t.Errorf("the views of the new path are %v, want %v", got, want)
	}
}

func TestOnGiveUpIsCalledOnlyAfterSettling(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		stolen bool
		want   []string
	}{
		"settled here": {false, []string{"sync failed not_found"}},
		"taken over":   {true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, client := context.Background(), startRedis(t)
			var ended []string
			changes := handlers.Changes{Namespace: events.DefaultNamespace, Log: quiet(), Observe: func(e handlers.Event) {
				ended = append(ended, e.Timeline.Operation+" "+e.Timeline.Outcome+" "+string(e.Result.Class))
			}}
			dispose := changes.Dispose(router.Retry{}).Middleware
			messages := testenv.Must(newSubscriber(t, client).Subscribe(ctx, topic))(t)
			publishChange(t, client, events.Change{ID: "c1"})
			msg := testenv.Receive(t, messages, "message")
			defer msg.Ack()
			delivery, _ := stream.DeliveryOf(msg)
			_, err := dispose(func(*message.Message) ([]*message.Message, error) {
				if tc.stolen {
					client.Do(ctx, "XCLAIM", topic, "workers", "another", 0, delivery.Entry())
				}
				return nil, events.Errorf(events.Permanent, events.ClassNotFound, "no such repository")
			})(msg)
			if err != nil || !slices.Equal(ended, tc.want) {
				t.Errorf("ended %q, error %v; want %q", ended, err, tc.want)
			}
		})
	}
}
