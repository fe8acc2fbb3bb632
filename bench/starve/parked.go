package starve

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
)

// parked is the case of many parked entries that become due at once.
type parked struct {
	entries        int
	network, limit time.Duration
}

func newParkedCommand(std term.Streams) *cobra.Command {
	var c parked
	cmd := newCase(std, &cobra.Command{
		Use:   "parked",
		Short: "What many parked entries of distinct keys cost when they are due",
		Long: "Park entries by giving them back with a delay. When all are due, let a stream subscriber ack them, with a delay\n" +
			"before each call to Redis as of a network, and count its calls: with a key for each entry, and without keys.",
	}, func() error {
		return atLeastOne("--entries, --network and --limit", int64(c.entries), int64(c.network), int64(c.limit))
	}, c.run)
	flags := cmd.Flags()
	flags.IntVar(&c.entries, "entries", 4000, "number of entries")
	flags.DurationVar(&c.network, "network", time.Millisecond, "delay of each call to Redis")
	flags.DurationVar(&c.limit, "limit", time.Minute, "when to give up")
	return cmd
}

func (c *parked) run(ctx context.Context, env *rig.Env, server *rig.Redis) (rig.Report, error) {
	report := newReport("parked", server, "%d parked entries, %v to Redis", c.entries, c.network)
	for _, side := range []struct {
		name string
		key  func(*message.Message) string
	}{
		{"distinct keys", func(msg *message.Message) string { return msg.UUID }},
		{"no keys", nil},
	} {
		namespace := rig.NewNamespace()
		if err := c.park(ctx, env, server, namespace, side.key); err != nil {
			return nil, fmt.Errorf("park entries: %w", err)
		}
		network := &slowNetwork{delay: c.network}
		began := time.Now()
		err := c.settle(ctx, server, namespace, stream.SubscriberConfig{
			Redis: server.With(network).Open(), Reader: server.With(network).Open(), Key: side.key,
		})
		if err != nil {
			return nil, fmt.Errorf("settle parked entries: %w", err)
		}
		report.addWithin(1500*float64(c.entries)/4000, "calls to Redis, "+side.name, float64(network.calls.Load()))
		report.add("all settled after, s, "+side.name, time.Since(began).Seconds())
	}
	return report, nil
}

// park publishes entries and gives each back once. It returns when all are due.
func (c *parked) park(ctx context.Context, env *rig.Env, server *rig.Redis, namespace events.Namespace, key func(*message.Message) string) error {
	wait := time.Second + time.Duration(c.entries)*time.Millisecond // longer than it takes to park them all
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Redis: server.Client})
	if err != nil {
		return err
	}
	for i := range c.entries {
		if err := publisher.Publish(namespace.Changes(), message.NewMessage(fmt.Sprintf("entry-%d", i), nil)); err != nil {
			return err
		}
	}
	env.Progress("parking %d entries", c.entries)
	cfg := stream.SubscriberConfig{Redis: server.Open(), Reader: server.Open(), Key: key}
	err = c.receive(ctx, namespace, cfg, c.entries, func(msg *message.Message) {
		delay.Message(msg, delay.For(wait))
		msg.Metadata.Set(stream.MetadataUncounted, "true")
		msg.Nack()
	})
	if err != nil {
		return err
	}
	if !app.Sleep(ctx, wait) {
		return context.Cause(ctx)
	}
	return nil
}

// settle acks all entries.
func (c *parked) settle(ctx context.Context, server *rig.Redis, namespace events.Namespace, cfg stream.SubscriberConfig) error {
	if err := c.receive(ctx, namespace, cfg, c.entries, func(msg *message.Message) { msg.Ack() }); err != nil {
		return err
	}
	left, err := pendingCount(ctx, server.Client, namespace)
	if err == nil && left > 0 {
		err = fmt.Errorf("%d of %d entries left pending", left, c.entries)
	}
	return err
}

// receive calls handle for n messages and closes the subscriber and its clients.
func (c *parked) receive(ctx context.Context, namespace events.Namespace, cfg stream.SubscriberConfig, n int, handle func(*message.Message)) error {
	defer cfg.Redis.Close()
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	subscriber, err := newSubscriber(cfg, namespace)
	if err != nil {
		return err
	}
	messages, err := subscriber.Subscribe(ctx, namespace.Changes())
	for err == nil && n > 0 {
		select {
		case msg, open := <-messages:
			if !open {
				err = context.Cause(ctx)
				break
			}
			handle(msg)
			n--
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if errClose := subscriber.Close(); err == nil { // writes the last acks
		err = errClose
	}
	return err
}

// slowNetwork is a hook that delays and counts the calls of its clients. A pipeline is one call.
type slowNetwork struct {
	delay time.Duration
	calls atomic.Int64
}

func (n *slowNetwork) call() {
	n.calls.Add(1)
	time.Sleep(n.delay)
}

// DialHook implements [redis.Hook].
func (n *slowNetwork) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (n *slowNetwork) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		n.call()
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (n *slowNetwork) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		n.call()
		return next(ctx, cmds)
	}
}
