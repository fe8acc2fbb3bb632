package stream

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

// PublisherConfig says what a [Publisher] works with. Redis is required.
type PublisherConfig struct {
	Redis  redis.UniversalClient // never closed; must not retry by itself, or a message may be there twice
	MaxLen int64                 // about how many entries a stream keeps, whoever has read them; 0 for all
}

// Publisher adds messages to streams in Watermill's wire format. It is a Watermill message.Publisher
// and safe for concurrent use.
type Publisher struct {
	cfg    PublisherConfig
	closed atomic.Bool
}

// ErrClosed is what a closed Publisher or Subscriber answers.
var ErrClosed = errors.New("stream: closed")

// NewPublisher makes a Publisher.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	if cfg.Redis == nil {
		return nil, errors.New("stream: PublisherConfig.Redis is required")
	}
	if cfg.MaxLen < 0 {
		return nil, fmt.Errorf("stream: PublisherConfig.MaxLen %d is negative", cfg.MaxLen)
	}
	return &Publisher{cfg: cfg}, nil
}

// Publish adds messages to the stream called topic, in order, each under its own context. It stops at
// the first that fails. A message whose error is that of a broken connection may have been added all
// the same; publish it again with the same UUID.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if p.closed.Load() {
		return ErrClosed
	}
	for _, msg := range messages {
		if _, err := p.Add(msg.Context(), topic, msg); err != nil {
			return err
		}
	}
	return nil
}

// Add is Publish for one message, under ctx, and returns the id of its stream entry.
func (p *Publisher) Add(ctx context.Context, topic string, msg *message.Message) (entry string, err error) {
	if p.closed.Load() {
		return "", ErrClosed
	}
	fields, err := encode(topic, msg)
	if err != nil {
		return "", fmt.Errorf("marshal message %s for %s: %w", msg.UUID, topic, err)
	}
	entry, err = p.cfg.Redis.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: fields, MaxLen: p.cfg.MaxLen, Approx: true}).Result()
	if err != nil {
		return "", fmt.Errorf("publish to %s: %w", topic, err)
	}
	return entry, nil
}

// Close makes further calls of Publish and Add fail. The client stays open; it is the caller's.
func (p *Publisher) Close() error {
	p.closed.Store(true)
	return nil
}
