package stream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"lockstep/events/stream"
	"lockstep/internal/logtest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

const (
	topic    = "lockstep:{0}:changes"
	dead     = "lockstep:{0}:dead"
	group    = "workers"
	due      = "lockstep:{0}:due:changes:workers"
	failures = "lockstep:{0}:failures:changes:workers"

	patience = 3 * time.Minute      // timeout for events that must happen
	rounding = 2 * time.Millisecond // of a delay: Redis' clock is read in whole milliseconds at both ends
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == restartMain {
		if err := restart(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testenv.Parallel(16)
	testenv.Main(m,
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/pubsub/tests.TestReconnect.func2"), // never ends
		// Watermill's suite leaves unread messages behind.
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe.func2"),
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe.func3"),
	)
}

// worker is a Subscriber with its own name and connection, as in a separate process.
type worker struct {
	*stream.Subscriber
	t        testing.TB
	messages <-chan *message.Message
	gate     *gate
	log      *logged
}

// start starts a worker. Cutting its connection looks to others like kill -9.
func start(t testing.TB, server *redistest.Server, name string, change func(*stream.SubscriberConfig)) *worker {
	t.Helper()
	w := &worker{t: t, gate: &gate{}, log: &logged{}}
	client := server.Client()
	client.AddHook(w.gate)
	reader := server.Client()
	reader.AddHook(w.gate)
	cfg := stream.SubscriberConfig{
		Client: client, Reader: reader, ConsumerGroup: group, Consumer: name, Grace: 5 * time.Second,
		NackResendSleep: time.Millisecond,
		Log:             slog.New(slog.NewTextHandler(w.log, nil)),
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if w.Subscriber, err = stream.NewSubscriber(cfg, nil); err != nil {
		t.Fatal(err)
	}
	if w.messages, err = w.Subscribe(context.Background(), topic); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.gate.cut.Store(false) // or Close waits until it gives up
		go func() {             // return the remaining messages
			for m := range w.messages {
				m.Nack()
			}
		}()
		if err := w.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Errorf("close %s: %v", name, err)
		}
	})
	return w
}

// outages counts the logged outages and recoveries of Redis. Tests expect no other errors.
func (w *worker) outages() (away, back int) {
	text := w.log.String()
	return strings.Count(text, "level=ERROR"), strings.Count(text, "Redis is back")
}

// backAgain waits until the worker has logged the end of each outage, and checks that there were 1 to most outages.
func (w *worker) backAgain(most int) {
	w.t.Helper()
	eventually(w.t, "the worker is back", func() bool { away, back := w.outages(); return away == back })
	if away, _ := w.outages(); away < 1 || away > most {
		w.t.Errorf("Redis went away %d times; want once, and %d times at most; log:\n%s", away, most, w.log)
	}
}

func (w *worker) next() *message.Message {
	w.t.Helper()
	select {
	case m, open := <-w.messages:
		if !open {
			w.t.Fatal("the channel is closed; want a message")
		}
		return m
	case <-time.After(patience):
		w.t.Fatalf("no message comes; log:\n%s", w.log)
	}
	return nil
}

// none fails the test if a message arrives within d.
func (w *worker) none(d time.Duration) {
	w.t.Helper()
	select {
	case m, open := <-w.messages:
		if open {
			w.t.Fatalf("message %s comes (%s); want none", m.UUID, m.Payload)
		}
	case <-time.After(d):
	}
}

func delivery(t testing.TB, m *message.Message) *stream.Delivery {
	t.Helper()
	d, ok := stream.DeliveryOf(m)
	if !ok {
		t.Fatal("the message has no delivery")
	}
	return d
}

func adder(t testing.TB, client redis.UniversalClient) *stream.Publisher {
	t.Helper()
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return publisher
}

// publish adds n messages, named m0, m1 and so on.
func publish(t testing.TB, client redis.UniversalClient, n int) {
	t.Helper()
	for i := range n {
		m := message.NewMessage(fmt.Sprintf("m%d", i), []byte(fmt.Sprintf(`{"n":%d}`, i)))
		m.Metadata.Set("kept", "yes")
		publishAll(t, client, m)
	}
}

func publishOne(t testing.TB, client redis.UniversalClient, id string) {
	t.Helper()
	publishAll(t, client, message.NewMessage(id, []byte("{}")))
}

func publishAll(t testing.TB, client redis.UniversalClient, messages ...*message.Message) {
	t.Helper()
	if err := adder(t, client).Publish(topic, messages...); err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// pending returns the number of pending entries by consumer.
func pending(t testing.TB, client redis.UniversalClient) map[string]int64 {
	t.Helper()
	p, err := client.XPending(context.Background(), topic, group).Result()
	if err != nil {
		t.Fatal(err)
	}
	return p.Consumers
}

// clean waits until the group has no state left in Redis.
func clean(t testing.TB, client redis.UniversalClient) {
	t.Helper()
	eventually(t, "nothing is pending, due or counted", func() bool {
		n, err := client.Exists(context.Background(), due, failures).Result()
		return err == nil && n == 0 && len(pending(t, client)) == 0
	})
}

func length(t testing.TB, client redis.UniversalClient, key string) int64 {
	t.Helper()
	n, err := client.XLen(context.Background(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func entries(t testing.TB, client redis.UniversalClient, key string) []redis.XMessage {
	t.Helper()
	all, err := client.XRange(context.Background(), key, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// gate is a connection that can be cut, and that can lose replies.
type gate struct {
	cut       atomic.Bool
	loseReply atomic.Int32 // number of settle calls whose replies to lose
	running   atomic.Int32 // scripts under way
}

func (g *gate) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if g.cut.Load() {
			return nil, &net.OpError{Op: "dial", Err: errors.New("the connection is cut")}
		}
		return next(ctx, network, addr)
	}
}

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			g.running.Add(1)
			defer g.running.Add(-1)
		}
		if g.cut.Load() {
			cmd.SetErr(io.EOF)
			return io.EOF
		}
		err := next(ctx, cmd)
		if err == nil && stream.Settles(cmd) && g.loseReply.Load() > 0 {
			g.loseReply.Add(-1)
			cmd.SetErr(io.EOF)
			return io.EOF
		}
		return err
	}
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// logged is the log of a worker.
type logged struct{ logtest.Buffer }

func (l *logged) count(text string) int { return strings.Count(l.String(), text) }
