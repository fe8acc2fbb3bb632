package stream

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

// Subscriber delivers entries of streams to a consumer group, and redelivers each until it is finished. It is
// a Watermill message.Subscriber and SubscribeInitializer, and safe for concurrent use.
type Subscriber struct {
	cfg    SubscriberConfig
	outage *outage

	closing context.Context
	close   context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex // guards the fields below, and orders running.Add before Wait
	closed bool
	opened map[string]int // number of subscriptions by topic
}

// NewSubscriber returns a Subscriber. It does not connect to Redis. logger may be nil.
func NewSubscriber(cfg SubscriberConfig, logger watermill.LoggerAdapter) (*Subscriber, error) {
	cfg, err := cfg.withDefaults(logger)
	if err != nil {
		return nil, err
	}
	closing, cancel := context.WithCancel(context.Background())
	return &Subscriber{
		cfg: cfg, outage: &outage{log: cfg.Log.With("group", cfg.ConsumerGroup)},
		closing: closing, close: cancel, opened: make(map[string]int),
	}, nil
}

// SubscribeInitialize creates the stream called topic and the group, unless they exist. Without a group it
// does nothing.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	if s.cfg.ConsumerGroup == "" {
		return nil
	}
	return withTimeout(context.Background(), s.group(topic, s.cfg.Consumer).initialize)
}

// Subscribe delivers the messages of the stream called topic until ctx is done or the Subscriber is closed.
//
// ctx is the parent of each message's context. When it ends, unacked messages are returned at once, to be
// redelivered uncounted, and the channel is closed. To let handlers finish, use [Subscriber.Close], which
// grants them the grace period. A message's context also ends when the message is acked or nacked, when
// another consumer owns the entry (cause [ErrNotOwner]), or at the end of the grace period (cause
// [ErrClosed]).
//
// Without a group, each Subscribe delivers every message, one at a time, and a nacked one again, until it or
// the Subscriber ends. Nothing is kept in Redis, and such messages have no [Delivery].
//
// Subscribe returns an error if Redis does not answer. After that it waits for an unavailable Redis.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	s.running.Add(1)
	s.opened[topic]++
	// Two subscriptions to one stream need separate consumers to keep their entries apart.
	consumer := s.cfg.Consumer
	if n := s.opened[topic]; n > 1 {
		consumer = fmt.Sprintf("%s#%d", consumer, n)
	}
	s.mu.Unlock()

	out, run, err := s.open(ctx, topic, consumer)
	if err != nil {
		s.running.Done()
		return nil, err
	}
	stop, cancel := context.WithCancel(ctx)
	unlink := context.AfterFunc(s.closing, cancel)
	go func() {
		defer s.running.Done()
		defer unlink()
		defer cancel()
		run(stop)
	}()
	return out, nil
}

// open returns the channel of a subscription, and the function that fills and closes it.
func (s *Subscriber) open(
	ctx context.Context, topic, consumer string,
) (<-chan *message.Message, func(context.Context), error) {
	if s.cfg.ConsumerGroup == "" {
		f := &fanOut{cfg: s.cfg, outage: s.outage, stream: topic, base: ctx, out: make(chan *message.Message)}
		err := withTimeout(ctx, func(ctx context.Context) (err error) {
			f.last, err = resolve(ctx, s.cfg.Client, topic, s.cfg.FanOutOldestId)
			return err
		})
		return f.out, f.run, err
	}
	group := s.group(topic, consumer)
	if err := withTimeout(ctx, group.initialize); err != nil {
		return nil, nil, err
	}
	sub := newSubscription(s, group, ctx)
	return sub.out, sub.run, nil
}

// Draining returns the Subscriber for a Watermill router: when the ctx of one Subscribe ends, the whole
// Subscriber is closed, its other topics included, and handlers get the grace period. The router's Close ends
// that ctx, and may not close a subscriber that has just begun.
func (s *Subscriber) Draining() message.Subscriber { return draining{s} }

type draining struct{ *Subscriber }

func (d draining) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	messages, err := d.Subscriber.Subscribe(context.WithoutCancel(ctx), topic)
	if err == nil {
		context.AfterFunc(ctx, func() {
			if err := d.Subscriber.Close(); err != nil {
				d.cfg.Log.WarnContext(ctx, "subscriber not closed", "topic", topic, "error", err)
			}
		})
	}
	return messages, err
}

func (s *Subscriber) group(topic, consumer string) *group {
	g := groupOf(s.cfg.Client, s.cfg.Prefix, topic, s.cfg.ConsumerGroup)
	g.consumer, g.start = consumer, s.cfg.OldestId
	return g
}

func groupOf(client redis.UniversalClient, prefix, topic, name string) *group {
	key := func(kind string) string { return indexKey(prefix, kind, topic, name) }
	return &group{
		redis: onceClient{client}, stream: topic, name: name, clock: new(clock),
		due: key("due"), failures: key("failures"), parkedIndex: key("parked"), parkedLabels: key("labels"),
	}
}

// DueKey returns the key of a group's due index for the stream called topic, a ZSET of entry ID to ms.
func DueKey(prefix, topic, group string) string { return indexKey(prefix, "due", topic, group) }

func indexKey(prefix, kind, topic, group string) string {
	return prefix + kind + ":" + strings.TrimPrefix(topic, prefix) + ":" + group
}

// Close stops reading and gives back entries that were not handed out. It waits up to the grace period for
// handlers, while heartbeats continue, then cancels their messages' contexts and gives back their entries.
// Only then does it close the message channels. It returns when everything that the Subscriber started has
// ended. If Redis is unavailable, entries that could not be given back lapse after the visibility timeout.
// Close may be called again, and waits again.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()

	s.close()
	var err error
	if first && s.cfg.Reader != nil {
		err = s.cfg.Reader.Close()
	}
	s.running.Wait()
	if err != nil {
		return fmt.Errorf("close the reader: %w", err)
	}
	return nil
}
