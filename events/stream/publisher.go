package stream

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
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
	inner  *redisstream.Publisher
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
	inner, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: cfg.Redis, DefaultMaxlen: cfg.MaxLen}, nil)
	if err != nil {
		return nil, fmt.Errorf("stream: %w", err)
	}
	return &Publisher{inner: inner}, nil
}

// Publish adds messages to the stream called topic, in order, each under its own context. It stops at
// the first that fails. A message whose error is that of a broken connection may have been added all
// the same; publish it again with the same UUID.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if p.closed.Load() {
		return ErrClosed
	}
	if err := p.inner.Publish(topic, messages...); err != nil {
		return fmt.Errorf("publish to %s: %w", topic, err)
	}
	return nil
}

// Close makes further calls of Publish fail. The client stays open; it is the caller's.
func (p *Publisher) Close() error {
	p.closed.Store(true)
	return nil
}
