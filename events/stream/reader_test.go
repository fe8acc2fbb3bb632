package stream_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

func add(t *testing.T, client redis.UniversalClient, topic, uuid, payload string) (entry string) {
	t.Helper()
	entry, err := adder(t, client).Add(context.Background(), topic, message.NewMessage(uuid, []byte(payload)))
	if err != nil {
		t.Fatal(err)
	}
	return entry
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

// follow returns the first n values of the field "n" after a cursor, each with its stream.
func follow(ctx context.Context, r *stream.Reader, n int, after map[string]string) (found []string, err error) {
	enough := errors.New("enough")
	err = r.Follow(ctx, after, func(topic string, e redis.XMessage) error {
		if found = append(found, fmt.Sprint(topic, " ", e.Values["n"])); len(found) == n {
			return enough
		}
		return nil
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return found, err
}

// number adds an entry with the field "n".
func number(t *testing.T, client redis.UniversalClient, topic string, n int) (entry string) {
	t.Helper()
	return testenv.Must(client.XAdd(context.Background(), &redis.XAddArgs{Stream: topic, Values: []any{"n", n}}).Result())(t)
}

func TestFollowReadsStreamsInOrderFromACursor(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	first := number(t, client, results, 1)
	number(t, client, results, 2)
	number(t, client, topic, 3)
	after := map[string]string{results: first, topic: "0-0"}
	found, err := follow(ctx, stream.NewReader(client), 2, after)
	if want := []string{topic + " 3", results + " 2"}; err != nil || !slices.Equal(found, want) {
		t.Errorf("%q, error %v; want %q", found, err, want)
	}
	if after[results] != first { // fn has not returned nil for 2
		t.Errorf("cursor %v moved past an entry that was not accepted", after)
	}
	if found, err = follow(ctx, stream.NewReader(client), 1, after); err != nil || found[0] != results+" 2" {
		t.Errorf("continued with %q, error %v", found, err)
	}
}

func TestFollowReceivesLaterEntries(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	for name, before := range map[string]func() string{
		"there is no stream yet": func() string { return "0-0" },
		"the stream is read":     func() string { return number(t, client, results, 1) },
	} {
		from, got := before(), make(chan error, 1)
		go func() {
			_, err := follow(context.Background(), stream.NewReader(client), 1, map[string]string{results: from})
			got <- err
		}()
		number(t, client, results, 2)
		select {
		case err := <-got:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(patience):
			t.Fatalf("%s: no entry", name)
		}
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	t.Parallel()
	reader := stream.NewReader(redistest.Start(t).Client())
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(enough)
	if _, err := follow(ctx, reader, 1, map[string]string{results: "0-0"}); !errors.Is(err, enough) {
		t.Errorf("%v, want the cause", err)
	}
	short, stop := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer stop()
	if _, err := follow(short, reader, 1, map[string]string{results: "0-0"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the deadline", err)
	}
}

// TestFollowContinuesAfterAnOutage: the caller sees the error, and its cursor is still good.
func TestFollowContinuesAfterAnOutage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	reader, after := stream.NewReader(server.Client()), map[string]string{results: "0-0"}
	number(t, server.Client(), results, 1)
	if found, err := follow(t.Context(), reader, 1, after); err != nil || found[0] != results+" 1" {
		t.Fatalf("%q, error %v", found, err)
	}
	server.Stop()
	if found, err := follow(t.Context(), reader, 1, after); err == nil {
		t.Errorf("%q without Redis, want an error", found)
	}
	server.Restart()
	number(t, server.Client(), results, 2)
	found, err := follow(t.Context(), reader, 2, after)
	for deadline := time.Now().Add(patience); err != nil && time.Now().Before(deadline); { // connections from before fail
		found, err = follow(t.Context(), reader, 2, after)
	}
	if err != nil || found[1] != results+" 2" {
		t.Errorf("%q, error %v", found, err)
	}
}

func TestFollowFailsOnWhatIsNoPosition(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t) // the embedded Redis does not return WRONGTYPE here
	testenv.Must(server.Client().Set(t.Context(), topic, "no stream", 0).Result())(t)
	for name, after := range map[string]map[string]string{"no ID": {results: "soon"}, "no stream": {topic: "0-0"}} {
		if found, err := follow(t.Context(), stream.NewReader(server.Client()), 1, after); err == nil {
			t.Errorf("%s: %q, want an error", name, found)
		}
	}
}

// TestReadersOfOneEndShareAConnection has many readers wait for the next entry.
func TestReadersOfOneEndShareAConnection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	last := number(t, client, results, 1)
	reading, once := make(chan struct{}), sync.Once{}
	var running, most atomic.Int64
	client.AddHook(xreads{func() {
		most.Store(max(most.Load(), running.Add(1)))
		once.Do(func() { close(reading) })
	}, func() { running.Add(-1) }})
	reader, got := stream.NewReader(client), make(chan error)
	const readers = 50
	for range readers {
		go func() {
			_, err := follow(context.Background(), reader, 1, map[string]string{results: last})
			got <- err
		}()
	}
	<-reading
	number(t, server.Client(), results, 2)
	for range readers {
		if err := <-got; err != nil {
			t.Error(err)
		}
	}
	if n := most.Load(); n != 1 {
		t.Errorf("%d reads at a time, want 1", n)
	}
}

func TestRangesAreReadByPage(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	pipe := client.Pipeline()
	const many = 1234
	for n := range many {
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: results, ID: fmt.Sprintf("%d-0", n+1), Values: []any{"n", n, "text", strings.Repeat("x", 3000)}})
	}
	testenv.Must(pipe.Exec(ctx))(t)
	reader := stream.NewReader(client)
	for name, tc := range map[string]struct {
		entries     iter.Seq2[redis.XMessage, error]
		first, last int
	}{
		"all":              {reader.Forward(ctx, results, "-", "+"), 1, many},
		"backward":         {reader.Backward(ctx, results, "+", "-"), many, 1},
		"after an entry":   {reader.Forward(ctx, results, "(5-0", "+"), 6, many},
		"down to an entry": {reader.Backward(ctx, results, "700-0", "(20-0"), 700, 21},
	} {
		at, step := tc.first, 1
		if tc.last < tc.first {
			step = -1
		}
		for e, err := range tc.entries {
			if err != nil || e.ID != fmt.Sprintf("%d-0", at) {
				t.Fatalf("%s: %s, error %v; want %d", name, e.ID, err, at)
			}
			at += step
		}
		if at != tc.last+step {
			t.Errorf("%s: ended before %d, want %d", name, at, tc.last)
		}
	}
	testenv.Must(client.Set(ctx, topic, "no stream", 0).Result())(t)
	for e, err := range reader.Forward(ctx, topic, "-", "+") {
		if err == nil {
			t.Errorf("%v, want an error", e)
		}
	}
}

// xreads is a hook that calls functions before and after each XREAD.
type xreads struct{ before, after func() }

func (x xreads) DialHook(next redis.DialHook) redis.DialHook { return next }

func (x xreads) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "xread" {
			x.before()
			defer x.after()
		}
		return next(ctx, cmd)
	}
}

func (x xreads) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
