package stream_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

func adder(t *testing.T, client redis.UniversalClient) *stream.Publisher {
	t.Helper()
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return publisher
}

func add(t *testing.T, client redis.UniversalClient, topic, uuid, payload string) (entry string) {
	t.Helper()
	entry, err := adder(t, client).Add(context.Background(), topic, message.NewMessage(uuid, []byte(payload)))
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

func withUUID(uuid string) func(*message.Message) bool {
	return func(msg *message.Message) bool { return msg.UUID == uuid }
}

func TestAddReturnsTheEntryInWatermillsWireFormat(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	msg := message.NewMessage("m1", []byte("payload"))
	msg.Metadata.Set("k", "v")
	entry, err := adder(t, client).Add(ctx, topic, msg)
	if err != nil {
		t.Fatal(err)
	}
	found, err := client.XRange(ctx, topic, entry, entry).Result()
	if err != nil || len(found) != 1 {
		t.Fatalf("entry %s: %v, %v", entry, found, err)
	}
	stock, err := redisstream.DefaultMarshallerUnmarshaller{}.Marshal(topic, msg)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{}
	for name, value := range stock {
		if bytes, ok := value.([]byte); ok {
			value = string(bytes)
		}
		want[name] = value
	}
	if !maps.Equal(found[0].Values, want) {
		t.Errorf("fields %q, want those of watermill-redisstream, %q", found[0].Values, want)
	}
}

func TestAwaitReturnsTheFirstMatchAfterItsStart(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	before := add(t, client, results, "x", "1")
	if err := client.XAdd(ctx, &redis.XAddArgs{Stream: results, Values: []string{"_watermill_message_uuid", "x", "metadata", "\xff"}}).Err(); err != nil {
		t.Fatal(err)
	}
	add(t, client, results, "y", "2")
	add(t, client, results, "x", "3")
	add(t, client, results, "x", "4")
	for from, want := range map[string]string{"0": "1", before: "3"} {
		msg, err := stream.Await(ctx, client, results, from, withUUID("x"))
		if err != nil || string(msg.Payload) != want {
			t.Errorf("from %s: %v, error %v; want payload %s", from, msg, err, want)
		}
	}
}

func TestAwaitReceivesLaterMessages(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	for name, before := range map[string]func() string{
		"there is no stream yet": func() string { return "0" },
		"the stream is read":     func() string { return add(t, client, results, "w", "0") },
	} {
		from, got := before(), make(chan error, 1)
		go func() {
			_, err := stream.Await(context.Background(), client, results, from, withUUID(name))
			got <- err
		}()
		add(t, client, results, name, "")
		select {
		case err := <-got:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(patience):
			t.Fatalf("%s: no message", name)
		}
	}
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(enough)
	if _, err := stream.Await(ctx, client, results, "0", withUUID("x")); !errors.Is(err, enough) {
		t.Errorf("%v, want the cause", err)
	}
	short, stop := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer stop()
	if _, err := stream.Await(short, client, results, "0", withUUID("x")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the deadline", err)
	}
}

func TestAwaitSurvivesRedisRestart(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	client := server.Client()
	from := add(t, client, results, "w", "")
	server.Stop()
	failed := make(chan struct{}, 1)
	client.AddHook(commands{ended: func(err error) {
		if err != nil {
			signal(failed)
		}
	}})
	got := make(chan error, 1)
	go func() {
		_, err := stream.Await(context.Background(), client, results, from, withUUID("x"))
		got <- err
	}()
	<-failed // the outage was detected
	server.Restart()
	add(t, server.Client(), results, "x", "")
	select {
	case err := <-got:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("no message")
	}
}

func TestAwaitRequiresAnEntryID(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	for name, from := range map[string]string{"what is added meanwhile": "$", "no id": "soon", "nothing": ""} {
		if msg, err := stream.Await(context.Background(), client, results, from, withUUID("x")); err == nil {
			t.Errorf("%s: %v, want an error", name, msg)
		}
	}
}

func TestAwaitFailsOnAKeyThatIsNotAStream(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.StartReal(t).Client() // the embedded Redis does not return WRONGTYPE here
	if err := client.Set(ctx, results, "no stream", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if msg, err := stream.Await(ctx, client, results, "0", withUUID("x")); err == nil {
		t.Errorf("%v, want an error", msg)
	}
}

// commands is a hook that reports each command and its error.
type commands struct {
	sent  func(name string)
	ended func(err error)
}

func (c commands) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c commands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if c.sent != nil {
			c.sent(cmd.Name())
		}
		err := next(ctx, cmd)
		if c.ended != nil {
			c.ended(err)
		}
		return err
	}
}

func (c commands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// signal sends to a channel unless it is full.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
