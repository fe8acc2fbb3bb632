package main

import (
	"context"
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

const (
	prefix = "domains:{0}:" // one hash tag: all keys in one slot of a Redis Cluster
	wanted = prefix + "wanted"
	done   = prefix + "done"
	locks  = prefix + "lock:"

	askedBy = "asked_by" // metadata: cron or hand
)

type service struct {
	open    func() redis.UniversalClient
	log     *slog.Logger
	refresh func(ctx context.Context, domain string) (string, error)
}

// run handles requests until ctx is done, and requests every domain at each tick.
func (s *service) run(ctx context.Context, every time.Duration, domains []string) error {
	client := s.open()
	defer client.Close()
	locker, err := locking.New(locking.Config{Redis: client, Prefix: locks, Log: s.log})
	if err != nil {
		return err
	}
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Client: client, Reader: s.open(), Prefix: prefix, ConsumerGroup: "refreshers", Window: 8, Log: s.log, // 8 at once
	}, nil)
	if err != nil {
		return err
	}
	r, err := router.New(router.Config{Log: s.log, Routes: []router.Route{{
		Name: "refresh", Topic: wanted, Subscriber: subscriber, Handler: s.handle,
		Locker: locker, Request: request, Dispose: router.Disposer{Log: s.log},
	}}})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.tick(ctx, client, every, domains) })
	g.Go(func() error {
		if err := router.Run(ctx, r); err != nil {
			return err
		}
		return locker.Close(context.WithoutCancel(ctx))
	})
	return g.Wait()
}

// request locks by domain. Requests from cron skip a busy domain, because another tick follows.
func request(msg *message.Message) ([]locking.Request, error) {
	req := locking.Request{Key: string(msg.Payload), Job: msg.UUID, Operation: "refresh by " + msg.Metadata.Get(askedBy)}
	if msg.Metadata.Get(askedBy) == "cron" {
		req.IfHeld = locking.Skip
	}
	return []locking.Request{req}, nil
}

// handle refreshes a domain under its lease. Its result is published in the step that settles the message.
func (s *service) handle(msg *message.Message) ([]*message.Message, error) {
	domain := string(msg.Payload)
	found, err := s.refresh(msg.Context(), domain) // the context is canceled if the lease is lost
	if err != nil {
		return nil, err
	}
	s.log.InfoContext(msg.Context(), "domain refreshed", "domain", domain, "by", msg.Metadata.Get(askedBy), "addresses", found)
	out := message.NewMessage(msg.UUID, []byte(found))
	out.Metadata.Set("domain", domain)
	return router.Commit(msg, stream.Settlement{Outputs: []stream.Output{{Stream: done, Message: out}}})
}

// tick requests every domain at each tick.
func (s *service) tick(ctx context.Context, client redis.UniversalClient, every time.Duration, domains []string) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		for _, domain := range domains {
			if err := ask(ctx, client, domain, "cron"); err != nil && ctx.Err() == nil {
				s.log.ErrorContext(ctx, "refresh not requested, will retry at the next tick", "domain", domain, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func ask(ctx context.Context, client redis.UniversalClient, domain, by string) error {
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client, DefaultMaxlen: 10_000}, nil)
	if err != nil {
		return err
	}
	msg := message.NewMessage(watermill.NewUUID(), []byte(domain))
	msg.Metadata.Set(askedBy, by)
	msg.SetContext(ctx)
	return publisher.Publish(wanted, msg)
}
