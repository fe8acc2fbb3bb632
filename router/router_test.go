package router_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/locking"
	"lockstep/router"
)

const (
	prefix = "lockstep:{0}:"
	topic  = prefix + "changes"
)

func TestMain(m *testing.M) {
	// go-redis keeps one goroutine per process that it has no way to stop.
	testenv.Main(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.startGlobalTimeCache.func1"))
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newLocker(t *testing.T, client redis.UniversalClient, wait time.Duration) *locking.Locker {
	t.Helper()
	locker, err := locking.New(locking.Config{Redis: client, Prefix: prefix + "lock:", Wait: wait, Lease: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := locker.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return locker
}

func newSubscriber(t *testing.T, client redis.UniversalClient, change ...func(*stream.SubscriberConfig)) *stream.Subscriber {
	t.Helper()
	cfg := stream.SubscriberConfig{Client: client, Reader: anotherClient(client), Prefix: prefix, ConsumerGroup: "workers", Grace: time.Second, Log: quiet()}
	for _, c := range change {
		c(&cfg)
	}
	sub, err := stream.NewSubscriber(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Close() })
	return sub
}

// anotherClient lets a subscriber interrupt its blocking read at once, by closing its Reader.
func anotherClient(client redis.UniversalClient) redis.UniversalClient {
	options := *client.(*redis.Client).Options()
	return redis.NewClient(&options)
}

// run runs the router until the test ends.
func run(t *testing.T, routes ...router.Route) *message.Router {
	t.Helper()
	r, err := router.New(router.Config{Routes: routes, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- r.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	<-r.Running()
	return r
}

func publishTo(t *testing.T, pub message.Publisher, topic, id string, payload []byte) {
	t.Helper()
	if err := pub.Publish(topic, message.NewMessage(id, payload)); err != nil {
		t.Fatal(err)
	}
}

func newPublisher(t *testing.T, client redis.UniversalClient) *stream.Publisher {
	t.Helper()
	pub, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return pub
}

var newUUID = watermill.NewShortUUID

func startRedis(t *testing.T) redis.UniversalClient {
	t.Helper()
	return redistest.Start(t).Client()
}

func TestRunEndedBeforeItBegins(t *testing.T) {
	for range 100 { // the outcome must not depend on which of the two comes first
		client := redistest.Start(t).Client()
		route := router.Route{
			Name: "names", Topic: topic, Subscriber: newSubscriber(t, client), Handler: func(*message.Message) ([]*message.Message, error) { return nil, nil },
		}
		r, err := router.New(router.Config{Routes: []router.Route{route}, CloseTimeout: time.Hour, Log: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if err := router.Run(ctx, r); err != nil {
			t.Error(err)
		}
	}
}

var errLimited error = &events.Error{
	Disposition: events.Contention, Class: events.ClassBusy, RetryAfter: time.Millisecond, Err: errors.New("the host is limited"),
}

// noLocks fails the test if a message asks for a lock.
type noLocks struct{ t *testing.T }

func (l noLocks) AcquireAll(context.Context, ...locking.Request) (locking.Leases, error) {
	l.t.Error("a lock was requested")
	return nil, locking.ErrClosed
}

func TestRefusedMessageAcquiresNothing(t *testing.T) {
	t.Parallel()
	client := startRedis(t)
	refused := make(chan struct{}, 100)
	run(t, router.Route{Name: "r", Topic: topic, Subscriber: newSubscriber(t, client), Locker: noLocks{t}, Request: byPayload,
		Handler: func(*message.Message) ([]*message.Message, error) {
			t.Error("the handler was called")
			return nil, nil
		},
		Before: []message.HandlerMiddleware{func(message.HandlerFunc) message.HandlerFunc {
			return func(*message.Message) ([]*message.Message, error) {
				refused <- struct{}{}
				return nil, errLimited
			}
		}},
		Dispose: router.Disposer{Log: quiet(), Retry: router.Retry{MaxAttempts: 1}},
	})
	publishTo(t, newPublisher(t, client), topic, "1", []byte("k"))
	for range 10 { // more often than its attempts
		testenv.Receive(t, refused, "delivery")
	}
	if n := client.XLen(context.Background(), events.DefaultNamespace.Dead()).Val(); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

func TestWorkerNeedsItsFields(t *testing.T) {
	t.Parallel()
	handlers := map[string]message.HandlerFunc{topic: func(*message.Message) ([]*message.Message, error) { return nil, nil }}
	key := func(*message.Message) string { return "" }
	client := redis.NewClient(&redis.Options{})
	t.Cleanup(func() { _ = client.Close() })
	for name, w := range map[string]router.Worker{
		"client":   {Prefix: prefix, Group: "workers", Key: key, Handlers: handlers},
		"prefix":   {Client: client, Group: "workers", Key: key, Handlers: handlers},
		"group":    {Client: client, Prefix: prefix, Key: key, Handlers: handlers},
		"key":      {Client: client, Prefix: prefix, Group: "workers", Handlers: handlers},
		"handlers": {Client: client, Prefix: prefix, Group: "workers", Key: key},
	} {
		if err := w.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "router: ") {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// A message that waits for a key that is worked on elsewhere is given back when the worker stops, not after Grace.
func TestStoppingWorkerDoesNotAwaitLocks(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	locker := testenv.Must(locking.New(locking.Config{Redis: client, Prefix: prefix + "lock:workers:", Log: quiet()}))(t)
	holding, stopped := make(chan struct{}), make(chan error, 1)
	defer func() { _ = locker.Close(context.WithoutCancel(t.Context())) }()
	held, release := context.WithCancel(t.Context())
	defer release()
	go func() {
		_ = locker.Do(held, locking.Request{Key: "a", Job: "elsewhere"}, func(ctx context.Context, _ *locking.Lease) error {
			close(holding)
			<-ctx.Done()
			return nil
		})
	}()
	testenv.Receive(t, holding, "lease")
	ctx, cancel := context.WithCancel(t.Context())
	w := router.Worker{
		Client: client, Prefix: prefix, Group: "workers", Log: quiet(),
		Key: func(msg *message.Message) string { return string(msg.Payload) },
		Handlers: map[string]message.HandlerFunc{topic: func(*message.Message) ([]*message.Message, error) {
			t.Error("handled while the key is held elsewhere")
			return nil, nil
		}},
	}
	publishTo(t, newPublisher(t, client), topic, "1", []byte("a"))
	go func() { stopped <- w.Run(ctx) }()
	for client.Exists(ctx, prefix+"lock:workers:a:queue").Val() == 0 && t.Context().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	began := time.Now()
	cancel()
	if err := testenv.Receive(t, stopped, "end of Run"); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

func TestWorkerHandlesOneMessagePerKeyOverProcesses(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	publisher := testenv.Must(stream.NewPublisher(stream.PublisherConfig{Client: client}, nil))(t)
	const messages = 60
	for i := range messages {
		if err := publisher.Publish(topic, message.NewMessage(strconv.Itoa(i), []byte{byte('a' + i%3)})); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	inFlight, failed, done := map[string]int{}, map[string]bool{}, 0
	handle := func(msg *message.Message) ([]*message.Message, error) {
		key := string(msg.Payload)
		mu.Lock()
		inFlight[key]++
		together, first := inFlight[key], !failed[msg.UUID]
		failed[msg.UUID] = true
		mu.Unlock()
		if together > 1 {
			t.Errorf("%d messages of %s at a time", together, key)
		}
		runtime.Gosched()
		mu.Lock()
		defer mu.Unlock()
		inFlight[key]--
		if first && msg.UUID == "7" {
			return nil, errors.New("once")
		}
		if done++; done == messages {
			defer cancel()
		}
		return router.Commit(msg, stream.Settlement{})
	}
	w := router.Worker{
		Client: client, Prefix: prefix, Group: "workers", Key: func(msg *message.Message) string { return string(msg.Payload) },
		Handlers: map[string]message.HandlerFunc{topic: handle}, Retry: router.Retry{Base: time.Millisecond}, Log: quiet(),
	}
	errs := make(chan error, 2)
	for range 2 {
		go func() { errs <- w.Run(ctx) }()
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := client.XPending(context.WithoutCancel(ctx), topic, "workers").Val().Count; n != 0 {
		t.Errorf("%d messages pending", n)
	}
}
