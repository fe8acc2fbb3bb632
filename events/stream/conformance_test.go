package stream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// Watermill's universal suite for a Pub/Sub, pubsub/tests.TestPubSub. All of its 16 tests run:
//
//   - TestReconnect kills a private redis-server with SIGKILL, twice, and starts it again with its data.
//     TestConformanceReconnects runs it, not under the race detector, because the test itself has a data race: it reads the
//     messages it published while a goroutine appends to them.
//   - TestPublishSubscribeInOrder and TestNoAck need GuaranteedOrder, so TestPubSub skips them: a Subscriber hands out many
//     messages at a time, and Watermill's consumer of them may see the results in any order. TestConformanceInOrder runs
//     both with Window 1.
//
// Features that are off change what other tests expect, and skip none: ExactlyOnceDelivery (delivery is at least once),
// ContextPreserved (a context does not travel through Redis) and RequireSingleInstance (any number of instances work).
// ForceShort lowers the numbers of messages, but for TestReconnect's, unless LOCKSTEP_TEST=all.
func TestConformance(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	server := redistest.StartReal(t, "--appendonly", "yes", "--appendfsync", "always")
	build := pubSub(server, func(c *stream.SubscriberConfig) { c.Grace = 100 * time.Millisecond })
	tests.TestPubSub(t, features(), func(t *testing.T) (message.Publisher, message.Subscriber) {
		return build(t, watermill.NewShortUUID())
	}, build)
}

func TestConformanceReconnects(t *testing.T) {
	testenv.SkipUnderRace(t)
	t.Parallel()
	server := redistest.StartReal(t, "--appendonly", "yes", "--appendfsync", "always")
	features := features()
	features.RestartServiceCommand = restartCommand(t, server)
	build := pubSub(server, func(c *stream.SubscriberConfig) { c.Grace = 100 * time.Millisecond })
	tests.TestReconnect(t, tests.TestContext{TestID: tests.NewTestID(), Features: features}, func(t *testing.T) (message.Publisher, message.Subscriber) {
		publisher, subscriber := build(t, watermill.NewShortUUID())
		last := &lastHeld{Subscriber: subscriber.(*stream.Subscriber), published: make(chan struct{}, reconnectMessages)}
		return countedPublisher{publisher, last}, last
	})
}

// reconnectMessages is how many messages TestReconnect publishes.
const reconnectMessages = 10_000

// lastHeld hands out the last message of TestReconnect a second after all have been published: the test does not wait for
// its goroutine that notes what it has published.
type lastHeld struct {
	*stream.Subscriber
	published chan struct{}
}

func (s *lastHeld) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		seen := map[string]bool{}
		for msg := range in {
			if seen[msg.UUID] = true; len(seen) == reconnectMessages {
				for range reconnectMessages {
					<-s.published
				}
				time.Sleep(time.Second)
				seen = map[string]bool{}
			}
			out <- msg
		}
	}()
	return out, nil
}

type countedPublisher struct {
	message.Publisher
	last *lastHeld
}

func (p countedPublisher) Publish(topic string, messages ...*message.Message) error {
	err := p.Publisher.Publish(topic, messages...)
	if err == nil {
		for range messages {
			p.last.published <- struct{}{}
		}
	}
	return err
}

// Without a consumer group nothing outlives a subscription, and messages are in order.
func TestConformanceOfFanOut(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t)
	build := pubSub(server, func(c *stream.SubscriberConfig) { c.ConsumerGroup, c.FanOutOldestId = "", "0" })
	tests.TestPubSub(t, tests.Features{GuaranteedOrder: true, ForceShort: !testenv.All()},
		func(t *testing.T) (message.Publisher, message.Subscriber) { return build(t, "") }, nil)
}

// With Window 1 and one subscriber, unless a message is nacked or lapses.
func TestConformanceInOrder(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t)
	features := features()
	features.GuaranteedOrder, features.GuaranteedOrderWithSingleSubscriber = true, true
	build := pubSub(server, func(c *stream.SubscriberConfig) { c.Window = 1 })
	for name, test := range map[string]func(*testing.T, tests.TestContext, tests.PubSubConstructor){
		"TestPublishSubscribeInOrder": tests.TestPublishSubscribeInOrder,
		"TestNoAck":                   tests.TestNoAck,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, tests.TestContext{TestID: tests.NewTestID(), Features: features}, func(t *testing.T) (message.Publisher, message.Subscriber) {
				return build(t, watermill.NewShortUUID())
			})
		})
	}
}

func features() tests.Features {
	return tests.Features{
		ConsumerGroups: true, Persistent: true, NewSubscriberReceivesOldMessages: true, ForceShort: !testenv.All(),
	}
}

func pubSub(server *redistest.Server, change func(*stream.SubscriberConfig)) tests.ConsumerGroupPubSubConstructor {
	return func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		client := server.Client()
		publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
		if err != nil {
			t.Fatal(err)
		}
		cfg := stream.SubscriberConfig{
			Client: client, Reader: server.Client(), ConsumerGroup: group, NackResendSleep: stream.NoSleep,
		}
		change(&cfg)
		subscriber, err := stream.NewSubscriber(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = subscriber.Close() }) // some tests forget to
		return publisher, subscriber
	}
}

// restartMain is the first argument with which the test binary restarts a Redis server of another one.
const restartMain = "restart-redis"

// restartCommand returns a command that kills the server with SIGKILL and starts it again with its data. The command
// cannot do so itself, because the server is a child of this process: it asks over a Unix socket.
func restartCommand(t *testing.T, server *redistest.Server) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "redis") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "restart")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			server.Stop()
			server.Restart()
			_, _ = io.WriteString(conn, "done")
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
		_ = os.RemoveAll(dir)
	})
	return []string{self, restartMain, socket}
}

// restart is what the command runs.
func restart(socket string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	reply, err := io.ReadAll(conn)
	if string(reply) != "done" {
		err = errors.Join(fmt.Errorf("the server was not restarted: %q", reply), err)
	}
	return err
}
