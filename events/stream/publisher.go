package stream

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

// PublisherConfig configures a [Publisher]. Redis is required.
type PublisherConfig struct {
	Redis  redis.UniversalClient // never closed; must not retry by itself, which could duplicate messages
	MaxLen int64                 // approximate maximum length of a stream, read or not; 0 for unlimited
}

// Publisher adds messages to streams in Watermill's wire format. It is safe for concurrent use.
type Publisher struct {
	cfg    PublisherConfig
	closed atomic.Bool
}

// ErrClosed is returned by a closed Publisher or Subscriber.
var ErrClosed = errors.New("stream: closed")

// NewPublisher returns a Publisher.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	if cfg.Redis == nil {
		return nil, errors.New("stream: PublisherConfig.Redis is required")
	}
	if cfg.MaxLen < 0 {
		return nil, fmt.Errorf("stream: PublisherConfig.MaxLen %d is negative", cfg.MaxLen)
	}
	return &Publisher{cfg: cfg}, nil
}

// Publish adds messages to the stream called topic, in order, each under its own context. It stops at the first error.
// After a connection error the message may have been added: publish it again with the same UUID.
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

// Add publishes one message under ctx and returns the ID of its stream entry.
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

// Close makes later calls of Publish and Add fail. It does not close the client.
func (p *Publisher) Close() error {
	p.closed.Store(true)
	return nil
}
