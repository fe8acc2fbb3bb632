package router

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events/stream"
	"lockstep/locking"
)

// Worker is a whole program over Redis Streams: a subscriber, a locker and a router that share a client and a prefix. It
// handles one message per key at a time, across all processes of the group, and retries what fails.
type Worker struct {
	Client redis.UniversalClient // never closed
	Prefix string                // of its keys in Redis, with a {hash tag} for Redis Cluster, as in the topics
	Group  string                // consumer group; groups handle the same keys independently

	// Key returns the subject of a message. Messages with the key "" are independent of all others.
	Key      func(*message.Message) string
	Handlers map[string]message.HandlerFunc // by topic; each ends in [Commit]

	Concurrency int           // maximum messages in flight; default 1024
	Wait        time.Duration // for a key that another process works on, before the message is redelivered later; default 60 s
	Retry       Retry
	Log         *slog.Logger // default slog.Default
}

// Run handles messages until ctx is done, and returns when the last handler has ended. It returns an error if the Worker
// lacks a field, if Redis cannot be reached at the start, or if a handler has not ended 30 s after ctx was done.
func (w Worker) Run(ctx context.Context) error {
	if w.Client == nil || w.Prefix == "" || w.Group == "" || w.Key == nil {
		return errors.New("router: Client, Prefix, Group and Key of a Worker are required")
	}
	w.Log = cmp.Or(w.Log, slog.Default())
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Client: w.Client, Prefix: w.Prefix, ConsumerGroup: w.Group, Key: w.Key, Window: w.Concurrency, Log: w.Log,
	}, nil)
	if err != nil {
		return err
	}
	locker, err := locking.New(locking.Config{Redis: w.Client, Prefix: w.Prefix + "lock:" + w.Group + ":", Wait: w.Wait, Log: w.Log})
	if err != nil {
		return err
	}
	var routes []Route
	for _, topic := range slices.Sorted(maps.Keys(w.Handlers)) {
		routes = append(routes, Route{
			Name: topic, Topic: topic, Subscriber: subscriber, Handler: w.Handlers[topic],
			Locker: locker, Request: w.request, Dispose: Disposer{Retry: w.Retry, Log: w.Log},
		})
	}
	r, err := New(Config{Routes: routes, Log: w.Log})
	if err != nil {
		return errors.Join(err, locker.Close(ctx))
	}
	var g errgroup.Group
	working, stop := context.WithCancel(ctx)
	g.Go(func() error {
		defer stop()
		return Run(working, r)
	})
	g.Go(func() error { // during the drain, so that messages that wait for a lock return at once
		<-working.Done()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout+5*time.Second)
		defer cancel()
		return locker.Close(closing)
	})
	return g.Wait()
}

func (w Worker) request(msg *message.Message) ([]locking.Request, error) {
	return []locking.Request{{Key: cmp.Or(w.Key(msg), msg.UUID), Job: msg.UUID}}, nil
}
