package stream

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Subscriber delivers the entries of streams to one consumer group, and sees to it that each is
// delivered until it is finished. It is a Watermill message.Subscriber and SubscribeInitializer, and
// safe for concurrent use.
type Subscriber struct {
	cfg    SubscriberConfig
	outage *outage

	closing context.Context
	close   context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex // guards what follows, and running against Add after Wait
	closed bool
	opened map[string]int // subscriptions so far, by topic
}

// NewSubscriber makes a Subscriber. It does not talk to Redis yet.
func NewSubscriber(cfg SubscriberConfig) (*Subscriber, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	closing, cancel := context.WithCancel(context.Background())
	return &Subscriber{
		cfg:     cfg,
		outage:  &outage{log: cfg.Log.With("group", cfg.Group)},
		closing: closing,
		close:   cancel,
		opened:  make(map[string]int),
	}, nil
}

// SubscribeInitialize creates the stream called topic, and the group on it, unless they exist. The
// group begins with the stream's first entry.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	return withTimeout(context.Background(), s.group(topic, s.cfg.Consumer).create)
}

// Subscribe delivers the messages of the stream called topic until ctx is done or the Subscriber is
// closed, and then drains as [Subscriber.Close] says. A message's context has ctx's values; it ends
// when the message is acked or nacked, when the entry turns out to be in other hands (with the cause
// [ErrNotOwner]), and at the end of the grace (with the cause [ErrClosed]), but not with ctx.
//
// Subscribe fails when Redis does not answer. Later on, an unavailable Redis is waited for.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	s.running.Add(1)
	s.opened[topic]++
	// Two subscriptions to one stream are two consumers: each has to know its own entries.
	consumer := s.cfg.Consumer
	if n := s.opened[topic]; n > 1 {
		consumer = fmt.Sprintf("%s#%d", consumer, n)
	}
	s.mu.Unlock()

	group := s.group(topic, consumer)
	if err := withTimeout(ctx, group.create); err != nil {
		s.running.Done()
		return nil, err
	}
	sub := newSubscription(s, group, context.WithoutCancel(ctx))
	stop, cancel := context.WithCancel(ctx)
	unlink := context.AfterFunc(s.closing, cancel)
	go func() {
		defer s.running.Done()
		defer unlink()
		defer cancel()
		sub.run(stop)
	}()
	return sub.out, nil
}

func (s *Subscriber) group(topic, consumer string) *group {
	short := strings.TrimPrefix(topic, s.cfg.Prefix)
	return &group{
		redis:        s.cfg.Redis,
		stream:       topic,
		due:          DueKey(s.cfg.Prefix, topic, s.cfg.Group),
		failures:     s.cfg.Prefix + "tries:" + short + ":" + s.cfg.Group,
		parkedIndex:  s.cfg.Prefix + "shelf:" + short + ":" + s.cfg.Group,
		parkedLabels: s.cfg.Prefix + "labels:" + short + ":" + s.cfg.Group,
		name:         s.cfg.Group,
		consumer:     consumer,
	}
}

// DueKey names the ZSET of a group's due moments on the stream called topic: entry id to ms.
func DueKey(prefix, topic, group string) string {
	return prefix + "due:" + strings.TrimPrefix(topic, prefix) + ":" + group
}

// Close stops reading and gives back at once what has not been handed out. It lets handlers finish
// for as long as the grace, with heartbeats, then cancels their messages' contexts and gives these
// entries back too. Only then does it close the message channels. It returns when all that the
// Subscriber started has ended; when Redis does not answer either, what could not be given back
// lapses after the visibility time. Close may be called again, and waits again.
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
