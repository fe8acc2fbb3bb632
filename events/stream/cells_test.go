package stream_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

const oneCell, twoCell = "lockstep:{eu-1}:", "lockstep:{eu-2}:"

// addCellResult adds a result to a stream and returns its entry.
func addCellResult(t *testing.T, client redis.UniversalClient, topic, repo, id string, follows *events.Follows) string {
	t.Helper()
	path, err := events.ParseRepoPath(repo)
	if err != nil {
		t.Fatal(err)
	}
	msg, err := stream.ResultMessage(events.Result{ID: id, Type: events.ResultRemoved, Repo: path, Follows: follows})
	if err != nil {
		t.Fatal(err)
	}
	fields, err := stream.Fields(msg)
	if err != nil {
		t.Fatal(err)
	}
	entry, err := client.XAdd(context.Background(), &redis.XAddArgs{Stream: topic, Values: fields}).Result()
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

func subscribeCells(t *testing.T, client redis.UniversalClient) (*stream.Cells, <-chan *message.Message) {
	t.Helper()
	members := map[string]*stream.Subscriber{}
	for name, prefix := range map[string]string{"eu-1": oneCell, "eu-2": twoCell} {
		member, err := stream.NewSubscriber(stream.SubscriberConfig{Redis: client, Prefix: prefix, Group: "index", Grace: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		members[name] = member
	}
	all, err := stream.NewCells(members)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = all.Close() })
	messages, err := all.Subscribe(t.Context(), "results")
	if err != nil {
		t.Fatal(err)
	}
	return all, messages
}

func receiveResult(t *testing.T, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg := <-messages:
		return msg
	case <-time.After(time.Minute):
		t.Fatal("no message within a minute")
		return nil
	}
}

func TestCellsHoldsAMovedRepositoryUntilItsOldResultsAreAcknowledged(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	addCellResult(t, client, oneCell+"results", "acme/other", "other", nil)
	last := addCellResult(t, client, oneCell+"results", "acme/widgets", "old", nil)
	follows := &events.Follows{Cell: "eu-1", Stream: oneCell + "results", Entry: last}
	_, messages := subscribeCells(t, client)
	old := map[string]*message.Message{}
	for range 2 {
		msg := receiveResult(t, messages)
		old[msg.UUID] = msg
	}
	addCellResult(t, client, twoCell+"results", "acme/widgets", "new-1", follows)
	addCellResult(t, client, twoCell+"results", "acme/widgets", "new-2", follows)
	addCellResult(t, client, twoCell+"results", "acme/quiet", "quiet", follows) // moved, too, and acknowledged
	addCellResult(t, client, twoCell+"results", "acme/fresh", "fresh", nil)
	passed := map[string]bool{}
	for range 2 {
		msg := receiveResult(t, messages)
		passed[msg.UUID] = true
		msg.Ack()
	}
	if !passed["quiet"] || !passed["fresh"] {
		t.Fatalf("got %v while the old result was not acknowledged, want quiet and fresh", passed)
	}
	old["old"].Ack() // while that of another repository is still in hand
	for _, want := range []string{"new-1", "new-2"} {
		msg := receiveResult(t, messages)
		if msg.UUID != want {
			t.Fatalf("got %s, want %s", msg.UUID, want)
		}
		msg.Ack()
	}
	old["other"].Ack()
}

func TestCellsDeliversAMovedRepositoryWhoseOldResultsAreTrimmed(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	last := addCellResult(t, client, oneCell+"results", "acme/widgets", "old", nil)
	_, messages := subscribeCells(t, client)
	if msg := receiveResult(t, messages); msg.UUID != "old" { // never acknowledged
		t.Fatalf("got %s first, want old", msg.UUID)
	}
	if err := client.XDel(t.Context(), oneCell+"results", last).Err(); err != nil {
		t.Fatal(err)
	}
	addCellResult(t, client, twoCell+"results", "acme/widgets", "new", &events.Follows{Cell: "eu-1", Stream: oneCell + "results", Entry: last})
	if msg := receiveResult(t, messages); msg.UUID != "new" {
		t.Fatalf("got %s, want new", msg.UUID)
	} else {
		msg.Ack()
	}
}

func TestClosingCellsGivesBackWhatIsHeld(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	last := addCellResult(t, client, oneCell+"results", "acme/widgets", "old", nil)
	all, messages := subscribeCells(t, client)
	old := receiveResult(t, messages)
	addCellResult(t, client, twoCell+"results", "acme/widgets", "held", &events.Follows{Cell: "eu-1", Stream: oneCell + "results", Entry: last})
	addCellResult(t, client, twoCell+"results", "acme/fresh", "fresh", nil)
	receiveResult(t, messages).Ack() // so the one before is read, too
	old.Ack()
	if err := all.Close(); err != nil { // within the minute of grace, or the test times out
		t.Fatal(err)
	}
	for msg := range messages {
		t.Errorf("got %s after Close", msg.UUID)
	}
	_, messages = subscribeCells(t, client)
	if msg := receiveResult(t, messages); msg.UUID != "held" {
		t.Fatalf("got %s after a restart, want held", msg.UUID)
	} else {
		msg.Ack()
	}
}
