package router_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/logtest"
	"lockstep/internal/redistest"
	"lockstep/locking"
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
func work(t *testing.T, payload []byte, handler events.Handler) worked {
	t.Helper()
	ctx, client := context.Background(), startRedis(t)
	var mu sync.Mutex
	var w worked
	changes := router.Changes{
		Namespace: events.DefaultNamespace, Source: "/lockstep/worker/w1", Log: quiet(),
		Handler: func(ctx context.Context, job events.Job) (events.Outcome, error) {
			mu.Lock()
			w.attempts = append(w.attempts, job.Attempt)
			mu.Unlock()
			return handler(ctx, job)
		},
	}
	run(t, router.Route{Name: "changes", Topic: topic, Subscriber: newSubscriber(t, client),
		Handler: changes.Handle, Locker: newLocker(t, client, 5*time.Second), Request: changes.Request,
		Dispose: router.Disposer{Failed: changes.Failed, Log: quiet(), Retry: router.Retry{MaxAttempts: 3, Base: time.Millisecond}}})
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
		msg, err := redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(entry.Values)
		if err != nil {
			t.Fatal(err)
		}
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

// TestLogOfFailureNamesTheRepository covers a change that is retried and then fails.
func TestLogOfFailureNamesTheRepository(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), startRedis(t)
	var text logtest.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	changes := router.Changes{
		Namespace: events.DefaultNamespace, Source: "/lockstep/worker/w1", Log: log,
		Handler: func(context.Context, events.Job) (events.Outcome, error) {
			return events.Outcome{}, errors.New("a hiccup")
		},
	}
	run(t, router.Route{Name: "changes", Topic: topic, Subscriber: newSubscriber(t, client),
		Handler: changes.Handle, Locker: newLocker(t, client, 5*time.Second), Request: changes.Request,
		Dispose: router.Disposer{Failed: changes.Failed, Log: log, Retry: router.Retry{MaxAttempts: 2, Base: time.Millisecond}}})
	publishTo(t, newPublisher(t, client), topic, "m1", changeOf(t, "c1", "acme/widgets"))
	stopWhen(t, func() bool { return client.XLen(ctx, events.DefaultNamespace.Dead()).Val() > 0 })
	for _, message := range []string{"attempt failed, will retry", "attempts used up, now a dead letter"} {
		found := false
		for line := range strings.Lines(text.String()) {
			found = found || strings.Contains(line, `msg="`+message+`" repo=acme/widgets job=`)
		}
		if !found {
			t.Errorf("no line %q with the repository in\n%s", message, text.String())
		}
	}
}

func TestDispositions(t *testing.T) {
	t.Parallel()
	synced := func(job events.Job) (events.Outcome, error) {
		return events.Outcome{Result: job.Result(events.ResultSynced), State: map[string]string{"k": "v"}}, nil
	}
	for name, tc := range map[string]struct {
		handler  events.Handler
		attempts []int
		result   events.ResultType
		class    events.Class
		dead     string
	}{
		"none": {
			handler:  func(_ context.Context, job events.Job) (events.Outcome, error) { return synced(job) },
			attempts: []int{1}, result: events.ResultSynced,
		},
		"retryable, once": {
			handler: func(_ context.Context, job events.Job) (events.Outcome, error) {
				if job.Attempt == 1 {
					return events.Outcome{}, errors.New("a hiccup")
				}
				return synced(job)
			},
			attempts: []int{1, 2}, result: events.ResultSynced,
		},
		"retryable, attempts used up": {
			handler: func(context.Context, events.Job) (events.Outcome, error) {
				return events.Outcome{}, events.Errorf(events.Retryable, events.ClassNetwork, "no route")
			},
			attempts: []int{1, 2, 3}, result: events.ResultFailed, class: events.ClassNetwork, dead: "attempts used up",
		},
		"a panic": {
			handler:  func(context.Context, events.Job) (events.Outcome, error) { panic("oops") },
			attempts: []int{1, 2, 3}, result: events.ResultFailed, class: events.ClassInternal, dead: "attempts used up",
		},
		"permanent": {
			handler: func(context.Context, events.Job) (events.Outcome, error) {
				return events.Outcome{}, events.Errorf(events.Permanent, events.ClassNotFound, "no such repository")
			},
			attempts: []int{1}, result: events.ResultFailed, class: events.ClassNotFound,
		},
		"watch removed": {
			handler: func(context.Context, events.Job) (events.Outcome, error) {
				return events.Outcome{}, events.Errorf(events.Permanent, events.ClassUnwatched, "docs no longer watches it")
			},
			attempts: []int{1}, result: events.ResultFailed, class: events.ClassUnwatched,
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

func TestSkippedPollIsNotAFailure(t *testing.T) {
	t.Parallel()
	poll := []byte(`{"type":"due","repo":"acme/widgets","on_busy":"skip","id":"c1"}`)
	w := work(t, poll, func(context.Context, events.Job) (events.Outcome, error) {
		return events.Outcome{}, events.Errorf(events.Permanent, events.ClassCircuit, "the circuit is open")
	})
	if len(w.results) != 1 || w.results[0].Type != events.ResultPolled || w.results[0].Class != events.ClassCircuit || len(w.dead) > 0 {
		t.Errorf("results %+v, dead letters %v; want it polled", w.results, w.dead)
	}
}

func TestContentionIsNotCountedAsAttempt(t *testing.T) {
	t.Parallel()
	tries := 0
	w := work(t, changeOf(t, "c1", "acme/widgets"), func(_ context.Context, job events.Job) (events.Outcome, error) {
		if tries++; tries <= 5 { // more often than there are attempts
			return events.Outcome{}, events.Errorf(events.Contention, events.ClassBusy, "later")
		}
		return events.Outcome{Result: job.Result(events.ResultSynced)}, nil
	})
	if !slices.Equal(w.attempts, []int{1, 1, 1, 1, 1, 1}) || len(w.results) != 1 || len(w.dead) != 0 {
		t.Errorf("attempts %v, %d results, %d dead letters", w.attempts, len(w.results), len(w.dead))
	}
}

func TestMalformedChangeBecomesDeadLetter(t *testing.T) {
	t.Parallel()
	w := work(t, []byte(`{"repo":"acme/../../etc","url":"https://example.com/x/y"}`), nil)
	if len(w.attempts) != 0 || len(w.results) != 0 || len(w.dead) != 1 {
		t.Fatalf("attempts %v, %d results, %d dead letters", w.attempts, len(w.results), len(w.dead))
	}
	dead := w.dead[0].Values
	if dead["reason"] != "malformed" || dead["original:payload"] != `{"repo":"acme/../../etc","url":"https://example.com/x/y"}` {
		t.Errorf("dead letter %v", dead)
	}
}

func TestLostLeaseSettlesNothing(t *testing.T) {
	t.Parallel()
	client := startRedis(t)
	ctx := context.Background()
	handled := newSignal(2)
	first := true
	changes := router.Changes{
		Namespace: events.DefaultNamespace, Log: quiet(),
		Handler: func(_ context.Context, job events.Job) (events.Outcome, error) {
			defer handled.one()
			if first {
				first = false
				// Another worker acquires the lease, so this outcome must not be settled.
				client.HSet(ctx, events.DefaultNamespace.Locks()+"acme/widgets", "owner", "another", "fence", "99")
			}
			return events.Outcome{Result: job.Result(events.ResultSynced)}, nil
		},
	}
	run(t, router.Route{Name: "changes", Topic: topic, Subscriber: newSubscriber(t, client),
		Handler: changes.Handle, Locker: newLocker(t, client, 10*time.Second), Request: changes.Request,
		Dispose: router.Disposer{Failed: changes.Failed, Log: quiet(), Retry: router.Retry{MaxAttempts: 1, Base: time.Millisecond}}})
	publishTo(t, newPublisher(t, client), topic, "m1", changeOf(t, "c1", "acme/widgets"))
	within(t, handled.all, "second try")
	stopWhen(t, func() bool { return client.XLen(ctx, events.DefaultNamespace.Results()).Val() == 1 })
	if n := client.XLen(ctx, events.DefaultNamespace.Dead()).Val(); n != 0 {
		t.Errorf("%d dead letters: a lost lease counted as an attempt", n)
	}
}

func stopWhen(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within a minute")
		}
	}
}

func TestMessageThatKillsEveryProcessBecomesDeadLetter(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), startRedis(t)
	tried := 0
	changes := router.Changes{Namespace: events.DefaultNamespace, Log: quiet()}
	run(t, router.Route{Name: "changes", Topic: topic, Subscriber: newSubscriber(t, client),
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			tried++
			delivery, _ := stream.DeliveryOf(msg)
			return nil, delivery.Nack(ctx, 0, true) // like a lapse: no error, one more attempt
		},
		Dispose: router.Disposer{Failed: changes.Failed, Log: quiet(), Retry: router.Retry{MaxAttempts: 2, Base: time.Millisecond}}})
	publishTo(t, newPublisher(t, client), topic, "m1", changeOf(t, "c1", "acme/widgets"))
	stopWhen(t, func() bool { return client.XLen(ctx, events.DefaultNamespace.Dead()).Val() == 1 })
	if n := client.XLen(ctx, events.DefaultNamespace.Results()).Val(); n != 1 || tried != 16 {
		t.Errorf("%d results after %d tries; want one after 16", n, tried)
	}
}

func TestDispositionSurvivesRedisError(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err     error
		attempt int
	}{
		"contention":               {events.Errorf(events.Contention, events.ClassBusy, "later"), 1},
		"this process is stopping": {events.Errorf(events.Contention, events.ClassShutdown, "stopping"), 1},
		"retryable":                {errors.New("a hiccup"), 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			client := server.Client()
			refuse := &refuser{}
			own := server.Client()
			own.AddHook(refuse)
			second := newSignal(1)
			var attempts []int
			slow := func(c *stream.SubscriberConfig) { // the subscriber alone would redeliver only after the test
				c.Backoff = func(int) time.Duration { return time.Hour }
			}
			run(t, router.Route{Name: "changes", Topic: topic, Subscriber: newSubscriber(t, own, slow),
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					delivery, _ := stream.DeliveryOf(msg)
					if attempts = append(attempts, delivery.Attempt()); len(attempts) > 1 {
						second.one()
						return nil, nil
					}
					refuse.next.Store(true)
					return nil, tc.err
				},
				Dispose: router.Disposer{Log: quiet(), Retry: router.Retry{Base: time.Millisecond}}})
			publishTo(t, newPublisher(t, client), topic, "m1", nil)
			within(t, second.all, "second delivery, by the router's delay")
			if attempts[1] != tc.attempt {
				t.Errorf("attempt %d; want %d", attempts[1], tc.attempt)
			}
		})
	}
}

// refuser makes the next script that returns an entry fail.
type refuser struct{ next atomic.Bool }

func (r *refuser) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *refuser) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (r *refuser) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := cmd.Args() // evalsha, script, 3, its keys, group, consumer, "(parked)", an id, …
		if len(args) == 12 && args[8] == "(parked)" && r.next.CompareAndSwap(true, false) {
			cmd.SetErr(refusal{})
			return refusal{}
		}
		return next(ctx, cmd)
	}
}

type refusal struct{}

func (refusal) Error() string { return "NOPERM for once" }
func (refusal) RedisError()   {}

func TestMessageTakenOverIsNotAnError(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), startRedis(t)
	dispose := router.Disposer{Log: quiet()}.Middleware
	for name, cause := range map[string]error{
		"permanent": events.Errorf(events.Permanent, events.ClassNotFound, "no such repository"),
		"retryable": errors.New("a hiccup"),
		"not owner": stream.ErrNotOwner,
	} {
		t.Run(name, func(t *testing.T) {
			messages, err := newSubscriber(t, client).Subscribe(ctx, topic)
			if err != nil {
				t.Fatal(err)
			}
			publishTo(t, newPublisher(t, client), topic, "m1", nil)
			msg := within(t, messages, "message")
			defer msg.Ack()
			delivery, _ := stream.DeliveryOf(msg)
			client.Do(ctx, "XCLAIM", topic, "workers", "another", 0, delivery.Entry())
			_, err = dispose(func(*message.Message) ([]*message.Message, error) { return nil, cause })(msg)
			if err != nil {
				t.Error(err)
			}
			client.XAck(ctx, topic, "workers", delivery.Entry())
		})
	}
}

func TestDisposerWithoutFailed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		failed func(*message.Message, error, int) []stream.Output
		err    error
		dead   int64
	}{
		"nil, permanent":     {nil, events.Errorf(events.Permanent, events.ClassNotFound, "no"), 1},
		"nil, malformed":     {nil, events.Errorf(events.Malformed, events.ClassMalformed, "no"), 1},
		"nothing, malformed": {func(*message.Message, error, int) []stream.Output { return nil }, events.Errorf(events.Malformed, events.ClassMalformed, "no"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, client := context.Background(), startRedis(t)
			handled := newSignal(1)
			run(t, router.Route{Name: "r", Topic: topic, Subscriber: newSubscriber(t, client),
				Handler: func(*message.Message) ([]*message.Message, error) {
					defer handled.one()
					return []*message.Message{message.NewMessage("ignored", nil)}, tc.err
				},
				Dispose: router.Disposer{Failed: tc.failed, Log: quiet()}})
			publishTo(t, newPublisher(t, client), topic, "m1", nil)
			within(t, handled.all, "message")
			stopWhen(t, func() bool {
				return client.XPending(ctx, topic, "workers").Val().Count == 0 && client.XLen(ctx, events.DefaultNamespace.Dead()).Val() == tc.dead
			})
		})
	}
}

func TestPanicInRequestIsRetried(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), startRedis(t)
	run(t, router.Route{Name: "r", Topic: topic, Subscriber: newSubscriber(t, client),
		Handler: func(*message.Message) ([]*message.Message, error) { return nil, nil },
		Locker:  newLocker(t, client, time.Second), Request: func(*message.Message) ([]locking.Request, error) { panic("oops") },
		Dispose: router.Disposer{Log: quiet(), Retry: router.Retry{MaxAttempts: 2, Base: time.Millisecond}}})
	publishTo(t, newPublisher(t, client), topic, "m1", nil)
	stopWhen(t, func() bool { return client.XLen(ctx, events.DefaultNamespace.Dead()).Val() == 1 })
}

func TestMessageOlderThanMaxAgeIsNotRetried(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), startRedis(t)
	tries := 0
	changes := router.Changes{Namespace: events.DefaultNamespace, Log: quiet(),
		Handler: func(context.Context, events.Job) (events.Outcome, error) {
			tries++
			return events.Outcome{}, events.Errorf(events.Contention, events.ClassBehind, "not yet")
		},
	}
	long := time.Now().Add(-time.Hour).UnixMilli()
	client.XAdd(ctx, &redis.XAddArgs{Stream: topic, ID: fmt.Sprintf("%d-0", long), Values: []any{"repo", "acme/widgets", "url", "https://example.com/acme/widgets"}})
	run(t, router.Route{Name: "changes", Topic: topic, Subscriber: newSubscriber(t, client), Handler: changes.Handle,
		Dispose: router.Disposer{Failed: changes.Failed, Log: quiet(), Retry: router.Retry{Base: time.Millisecond, MaxAge: time.Minute}}})
	stopWhen(t, func() bool { return client.XLen(ctx, events.DefaultNamespace.Dead()).Val() == 1 })
	letter := client.XRange(ctx, events.DefaultNamespace.Dead(), "-", "+").Val()[0].Values
	if tries != 1 || letter["reason"] != "too old" || client.XLen(ctx, events.DefaultNamespace.Results()).Val() != 1 {
		t.Errorf("%d tries, letter %v", tries, letter)
	}
}
