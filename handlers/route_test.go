package handlers_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

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
	sub := testenv.Must(stream.NewSubscriber(cfg, nil))(t)
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
	r := testenv.Must(router.New(router.Config{Routes: routes, Log: quiet()}))(t)
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
	must(t, pub.Publish(topic, message.NewMessage(id, payload)))
}

func newPublisher(t *testing.T, client redis.UniversalClient) *stream.Publisher {
	t.Helper()
	pub := testenv.Must(stream.NewPublisher(stream.PublisherConfig{Client: client}, nil))(t)
	return pub
}

func changeOf(t *testing.T, id, repo string) []byte {
	t.Helper()
	c := testenv.Must(events.NewChange(events.Change{ID: id, URL: "https://example.com/" + repo + ".git"}))(t)
	document := testenv.Must(json.Marshal(c))(t)
	return document
}

func startRedis(t *testing.T) redis.UniversalClient {
	t.Helper()
	return redistest.Start(t).Client()
}

func stopWhen(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within a minute")
		}
	}
}

// signal closes all after n calls of one.
type signal struct {
	mu  sync.Mutex
	n   int
	all chan struct{}
}

func newSignal(n int) *signal { return &signal{n: n, all: make(chan struct{})} }

func (s *signal) one() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n--; s.n == 0 {
		close(s.all)
	}
}
