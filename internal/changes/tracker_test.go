package changes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/changes"
	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/testenv"
)

const topic, results = "lockstep:{0}:changes", "lockstep:{0}:results"

func TestMain(m *testing.M) { testenv.Main(m) }

func newTracker(client redis.UniversalClient) *changes.Tracker {
	return changes.NewTracker(client, events.DefaultNamespace)
}

func add(t *testing.T, client redis.UniversalClient, topic, uuid, payload string) (entry string) {
	t.Helper()
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		t.Fatal(err)
	}
	entry, err = publisher.Add(context.Background(), topic, message.NewMessage(uuid, []byte(payload)))
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

// receive returns the messages that a worker gets.
func receive(t *testing.T, server *redistest.Server) <-chan *message.Message {
	t.Helper()
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Client: server.Client(), Reader: server.Client(), ConsumerGroup: events.WorkersGroup,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := subscriber.Subscribe(context.Background(), topic)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = subscriber.Close() })
	return messages
}

// resultOf returns a worker's result for the change with this ID and entry.
func resultOf(t *testing.T, id, entry string) events.Result {
	t.Helper()
	change, err := events.NewChange(events.Change{ID: id, URL: "https://example.com/acme/widgets.git"})
	if err != nil {
		t.Fatal(err)
	}
	result := change.Result(events.ResultFailed, entry)
	result.Class, result.Error = events.ClassServer, "HTTP status 502"
	return result
}

// settlement returns a settlement of the delivery with its result.
func settlement(t *testing.T, delivery *stream.Delivery, id string) stream.Settlement {
	t.Helper()
	msg, err := changes.ResultMessage(resultOf(t, id, delivery.Entry()))
	if err != nil {
		t.Fatal(err)
	}
	return stream.Settlement{Outputs: []stream.Output{{Stream: results, Message: msg}}}
}

func addResult(t *testing.T, client redis.UniversalClient, id, entry string) {
	t.Helper()
	document, err := json.Marshal(resultOf(t, id, entry))
	if err != nil {
		t.Fatal(err)
	}
	add(t, client, results, id+"/"+entry, string(document))
}

// reads is a hook that calls a function before each XREAD.
type reads func()

func (r reads) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r reads) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "xread" {
			r()
		}
		return next(ctx, cmd)
	}
}

func (r reads) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestProgressFollowsAChangeToItsResult(t *testing.T) {
	t.Parallel()
	ctx, server := context.Background(), redistest.Start(t)
	client := server.Client()
	tracker := newTracker(client)
	expect := func(entry string, want changes.State) changes.Progress {
		t.Helper()
		p, err := tracker.Progress(ctx, entry)
		if err != nil || p.State != want {
			t.Fatalf("%s, error %v; want %s", p.State, err, want)
		}
		return p
	}
	expect("1-1", changes.Unknown)
	entry := add(t, client, topic, "c1", "")
	expect(entry, changes.Queued)

	messages := receive(t, server)
	first := <-messages
	delivery, _ := stream.DeliveryOf(first)
	expect(entry, changes.Pending)
	if err := delivery.Nack(ctx, 0, true); err != nil {
		t.Fatal(err)
	}
	first.Nack() // marks the end of the handler
	again := <-messages
	defer again.Ack()
	delivery, _ = stream.DeliveryOf(again)
	expect(entry, changes.Pending)
	later := add(t, client, topic, "c1", "")
	addResult(t, client, "c1", later)
	expect(entry, changes.Pending)

	if err := delivery.Settle(ctx, settlement(t, delivery, "c1")); err != nil {
		t.Fatal(err)
	}
	if p := expect(entry, changes.Answered); p.Result.ID != "c1/"+entry || p.Result.Error != "HTTP status 502" {
		t.Errorf("result %+v", p.Result)
	}
	if err := client.XDel(ctx, topic, entry).Err(); err != nil {
		t.Fatal(err)
	}
	expect(entry, changes.Answered) // although the change itself is gone
	if err := client.Del(ctx, results).Err(); err != nil {
		t.Fatal(err)
	}
	expect(entry, changes.Unknown)
}

func TestProgressFindsAResultAmongManyOthers(t *testing.T) {
	t.Parallel()
	for name, many := range map[string]struct{ before, after int }{
		"few":                       {before: 450},
		"a change that waited long": {before: 26_000},
		"views of two changes":      {before: 10_001, after: 10_000},
	} {
		t.Run(name, func(t *testing.T) { findAmong(t, many.before, many.after) })
	}
}

func findAmong(t *testing.T, before, after int) {
	client := redistest.Start(t).Client()
	addResult(t, client, "c", "1-1")
	others := func(n int) {
		pipe := client.Pipeline()
		for i := range n {
			pipe.XAdd(context.Background(), &redis.XAddArgs{Stream: results, Values: []string{"_watermill_message_uuid", fmt.Sprint("other/", i), "payload", "x"}})
			if pipe.Len() < 500 && i < n-1 {
				continue
			}
			if _, err := pipe.Exec(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	others(before)
	view := resultOf(t, "c", "1-2")
	view.ID, view.Type = "c/1-1/1-2", events.ResultView
	document, err := json.Marshal(view)
	if err != nil {
		t.Fatal(err)
	}
	add(t, client, results, view.ID, string(document))
	addResult(t, client, "c", "1-2")
	others(max(1, after))
	p, err := newTracker(client).Progress(context.Background(), "1-2")
	if err != nil || p.Result.ID != "c/1-2" {
		t.Errorf("%+v, error %v", p, err)
	}
}

func TestWaitReturnsTheOutcomeOfAChange(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		settle func(*stream.Delivery) stream.Settlement
		want   changes.State
	}{
		"it is settled with a result": {func(d *stream.Delivery) stream.Settlement { return settlement(t, d, "c1") }, changes.Answered},
		"it is settled without one":   {func(*stream.Delivery) stream.Settlement { return stream.Settlement{} }, changes.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			client := server.Client()
			entry := add(t, client, topic, "c1", "")
			msg := <-receive(t, server)
			defer msg.Ack()
			waiting := make(chan struct{}, 1)
			client.AddHook(reads(func() {
				select {
				case waiting <- struct{}{}:
				default:
				}
			}))
			got := make(chan changes.Progress, 1)
			go func() {
				p, err := newTracker(client).Wait(context.Background(), entry)
				if err != nil {
					t.Error(err)
				}
				got <- p
			}()
			<-waiting // the tracker found the change pending
			delivery, _ := stream.DeliveryOf(msg)
			if err := delivery.Settle(context.Background(), tc.settle(delivery)); err != nil {
				t.Fatal(err)
			}
			select {
			case p := <-got:
				if p.State != tc.want {
					t.Errorf("%+v, want %s", p, tc.want)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("it waits for ever")
			}
		})
	}
}

func TestWaitReturnsTheLastKnownProgress(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ctx, cancel := context.WithCancel(context.Background())
	client := server.Client()
	client.AddHook(reads(cancel)) // the tracker has found the change queued
	tracker := newTracker(client)
	entry := add(t, server.Client(), topic, "c1", "")
	if p, err := tracker.Wait(ctx, entry); !errors.Is(err, context.Canceled) || p.State != changes.Queued {
		t.Errorf("%+v, error %v", p, err)
	}
	server.Stop()
	away, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer stop()
	if p, err := tracker.Wait(away, entry); !errors.Is(err, context.DeadlineExceeded) || p.State != "" {
		t.Errorf("without Redis: %+v, error %v", p, err)
	}
}

func TestTrackerRejectsInvalidEntryIDs(t *testing.T) {
	t.Parallel()
	tracker := newTracker(redistest.Start(t).Client())
	for _, entry := range []string{"", "1", "1-", "-1", "a-b", "1-1-1", "+", "$"} {
		if p, err := tracker.Progress(context.Background(), entry); !errors.Is(err, changes.ErrBadEntry) {
			t.Errorf("%q: %+v, error %v", entry, p, err)
		}
		if _, err := tracker.Wait(context.Background(), entry); !errors.Is(err, changes.ErrBadEntry) {
			t.Errorf("wait for %q: error %v", entry, err)
		}
	}
}

func TestProgressOnACluster(t *testing.T) {
	t.Parallel()
	server, err := redisx.Parse(redistest.StartCluster(t).URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	client := server.Open()
	defer client.Close()
	tracker, entry := newTracker(client), add(t, client, topic, "c1", "")
	if p, err := tracker.Progress(context.Background(), entry); err != nil || p.State != changes.Queued {
		t.Errorf("%+v, error %v", p, err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := stream.NewReader(client).Next(context.Background(), map[string]string{results: "0-0"})
		got <- err
	}()
	addResult(t, client, "c1", entry)
	if err := <-got; err != nil {
		t.Error(err)
	}
}
