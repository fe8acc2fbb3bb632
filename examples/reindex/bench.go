package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events/stream"
	"lockstep/locking"
	"lockstep/router"
)

type bench struct {
	open    func() redis.UniversalClient
	docs    int
	readers int
	rounds  int
	pause   time.Duration
	log     *slog.Logger
}

// tally counts reads by their result.
type tally [mixed + 1]int

func (t tally) reads() int { return t[complete] + t[incomplete] + t[mixed] }

func (t tally) percent(s sight) float64 { return 100 * float64(t[s]) / float64(max(t.reads(), 1)) }

// measure rebuilds an index in rounds while readers read it.
func (b *bench) measure(ctx context.Context, s strategy) (t tally, rebuilds int, err error) {
	client := b.open()
	defer client.Close()
	prefix := "reindex:{" + watermill.NewShortUUID() + "}:" // unique for this run, in one slot of a Redis Cluster
	defer func() { err = errors.Join(err, remove(context.WithoutCancel(ctx), client, prefix)) }()
	ix := index{client: client, prefix: prefix, docs: b.docs}
	tallies := make([]tally, b.readers)

	err = b.rebuilder(ctx, client, ix, s, func(ctx context.Context, ask func() error) error {
		if err := ask(); err != nil { // builds a first version
			return err
		}
		g, ctx := errgroup.WithContext(ctx)
		reading, stop := context.WithCancel(ctx)
		for i := range tallies {
			g.Go(func() error { return read(reading, ix, s, &tallies[i]) })
		}
		g.Go(func() error {
			defer stop()
			for range b.rounds {
				var both errgroup.Group // like simultaneous requests by cron and by hand
				both.Go(ask)
				both.Go(ask)
				if err := both.Wait(); err != nil {
					return err
				}
				rebuilds += 2
				select {
				case <-time.After(b.pause):
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			return nil
		})
		return g.Wait()
	})
	for _, each := range tallies {
		for s, n := range each {
			t[s] += n
		}
	}
	return t, rebuilds, err
}

// read reads the index repeatedly until ctx is done, at least once.
func read(ctx context.Context, ix index, s strategy, t *tally) error {
	for {
		hash, err := s.open(context.WithoutCancel(ctx), ix)
		if err != nil {
			return err
		}
		seen, err := ix.read(context.WithoutCancel(ctx), hash)
		if err != nil {
			return err
		}
		t[seen]++
		if ctx.Err() != nil {
			return nil
		}
	}
}

// rebuilder handles requests while during runs. ask publishes a request and returns when it has ended.
func (b *bench) rebuilder(ctx context.Context, client redis.UniversalClient, ix index, s strategy,
	during func(ctx context.Context, ask func() error) error) error {
	topic := ix.prefix + "wanted"
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		return err
	}
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{Client: client, Reader: b.open(), Prefix: ix.prefix, ConsumerGroup: "rebuilders", Log: b.log}, nil)
	if err != nil {
		return err
	}
	ended := make(chan error, 2) // one for each concurrent request
	route := router.Route{
		Name: "rebuild", Topic: topic, Subscriber: subscriber,
		Dispose: router.Disposer{Log: b.log, OnGiveUp: func(_ *message.Message, err error, _ int) { ended <- err }},
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			settlement, err := s.rebuild(msg.Context(), ix, msg.UUID)
			if err != nil {
				return nil, err
			}
			produced, err := router.Commit(msg, settlement)
			if err == nil {
				ended <- nil
			}
			return produced, err
		},
	}
	if s.locked {
		locker, err := locking.New(locking.Config{Redis: client, Prefix: ix.prefix + "lock:"})
		if err != nil {
			return err
		}
		defer locker.Close(context.WithoutCancel(ctx))
		route.Locker = locker
		route.Request = func(msg *message.Message) ([]locking.Request, error) {
			return []locking.Request{{Key: "index", Job: msg.UUID, Operation: "rebuild"}}, nil
		}
	}
	r, err := router.New(router.Config{Log: b.log, Routes: []router.Route{route}})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	running, stop := context.WithCancel(ctx)
	g.Go(func() error { return router.Run(running, r) })
	g.Go(func() error {
		defer stop()
		return during(ctx, func() error {
			if err := publisher.Publish(topic, message.NewMessage(watermill.NewShortUUID(), []byte("index"))); err != nil {
				return err
			}
			select {
			case err := <-ended:
				return err
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	})
	return g.Wait()
}

func remove(ctx context.Context, client redis.UniversalClient, prefix string) error {
	keys := client.Scan(ctx, 0, prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := client.Unlink(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	if err := keys.Err(); err != nil {
		return fmt.Errorf("remove the keys of this run: %w", err)
	}
	return nil
}
