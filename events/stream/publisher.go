package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

// PublisherConfig configures a [Publisher]. Its fields are those of watermill-redisstream; Client is required.
type PublisherConfig struct {
	Client     redis.UniversalClient  // never closed
	Marshaller redisstream.Marshaller // default [DefaultMarshallerUnmarshaller]

	Maxlens       map[string]int64 // approximate maximum length by topic, whether read or not; 0 for unlimited
	DefaultMaxlen int64            // that of other topics, and of those whose number is negative
}

// DefaultMarshallerUnmarshaller is that of watermill-redisstream: the wire format.
type DefaultMarshallerUnmarshaller = redisstream.DefaultMarshallerUnmarshaller

// Publisher adds messages to streams. It is safe for concurrent use.
type Publisher struct {
	cfg    PublisherConfig
	log    watermill.LoggerAdapter
	closed atomic.Bool
}

// ErrClosed is returned by a closed Publisher or Subscriber.
var ErrClosed = errors.New("stream: closed")

// NewPublisher returns a Publisher. It logs each message at level trace; logger may be nil.
func NewPublisher(cfg PublisherConfig, logger watermill.LoggerAdapter) (*Publisher, error) {
	if cfg.Client == nil {
		return nil, errors.New("stream: PublisherConfig.Client is required")
	}
	if cfg.DefaultMaxlen < 0 {
		return nil, fmt.Errorf("stream: PublisherConfig.DefaultMaxlen %d is negative", cfg.DefaultMaxlen)
	}
	if cfg.Marshaller == nil {
		cfg.Marshaller = DefaultMarshallerUnmarshaller{}
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	return &Publisher{cfg: cfg, log: logger}, nil
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
	values, err := p.cfg.Marshaller.Marshal(topic, msg)
	if err != nil {
		return "", fmt.Errorf("marshal message %s for %s: %w", msg.UUID, topic, err)
	}
	args := []any{"xadd", topic}
	maxlen, ok := p.cfg.Maxlens[topic]
	if !ok || maxlen < 0 {
		maxlen = p.cfg.DefaultMaxlen
	}
	if maxlen > 0 {
		args = append(args, "maxlen", "~", maxlen)
	}
	args = append(args, "*")
	// Redis stores entries with the same names in the same order compactly
	for _, name := range slices.Sorted(maps.Keys(values)) {
		args = append(args, name, values[name])
	}
	cmd := redis.NewCmd(ctx, args...)
	_ = p.cfg.Client.Process(ctx, once{cmd}) // a retry by the client could add the message twice
	if entry, err = cmd.Text(); err != nil {
		return "", fmt.Errorf("publish to %s: %w", topic, err)
	}
	p.log.Trace("Message added to stream", watermill.LogFields{"topic": topic, "message_uuid": msg.UUID, "entry": entry})
	return entry, nil
}

// Close makes later calls of Publish and Add fail. It does not close the client.
func (p *Publisher) Close() error {
	p.closed.Store(true)
	return nil
}
