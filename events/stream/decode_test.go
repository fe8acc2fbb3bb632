package stream_test

import (
	"context"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

func TestUndecodableEntryBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	many := make([]any, 0, 6000)
	for range 3000 {
		many = append(many, "f", "\xff")
	}
	for name, tc := range map[string]struct {
		values any
		error  string
	}{
		"corrupt metadata":     {[]any{redisstream.UUIDHeaderKey, "x", "metadata", "\xdf\xff\xff\xff\xff", "payload", "{}"}, "unmarshal"},
		"metadata is a number": {[]any{redisstream.UUIDHeaderKey, "x", "metadata", "\x07", "payload", "{}"}, "unmarshal"},
		"no payload":           {[]any{redisstream.UUIDHeaderKey, "x", "metadata", ""}, "no payload"},
		"binary plain":         {[]any{"repo", "acme/\xff\x00"}, "not text"},
		"endless fields":       {many, "not text"},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			client := server.Client()
			w := start(t, server, "a", nil)
			id, err := client.XAdd(context.Background(), &redis.XAddArgs{Stream: topic, Values: tc.values}).Result()
			if err != nil {
				t.Fatal(err)
			}
			publish(t, client, 1)
			m := w.next()
			if m.UUID != "m0" {
				t.Fatalf("%s comes; want the sound message", m.UUID)
			}
			m.Ack()
			clean(t, client)
			all := entries(t, client, dead)
			if len(all) != 1 {
				t.Fatalf("%d dead letters; want 1; log:\n%s", len(all), w.log)
			}
			letter := all[0].Values
			if text, _ := letter["error"].(string); letter["reason"] != "undecodable" || letter["entry"] != id || !strings.Contains(text, tc.error) {
				t.Errorf("dead letter %.300v", letter)
			}
			fields := tc.values.([]any)
			if got := letter["original:"+fields[0].(string)]; got != fields[1] {
				t.Errorf("original field is %q; want %q", got, fields[1])
			}
		})
	}
}

// nothing is an unmarshaller that returns neither a message nor an error.
type nothing struct{}

func (nothing) Unmarshal(map[string]any) (*message.Message, error) { return nil, nil }

func TestUnmarshallerThatReturnsNilDoesNotPanic(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	start(t, server, "a", func(cfg *stream.SubscriberConfig) { cfg.Unmarshaller = nothing{} })
	publish(t, client, 1)
	eventually(t, "there is a dead letter", func() bool { return len(entries(t, client, dead)) == 1 })
	clean(t, client)
	if all := entries(t, client, dead); len(all) != 1 || all[0].Values["reason"] != "undecodable" {
		t.Errorf("dead letters %v", all)
	}
}

func TestPlainFieldsBecomeAChange(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	w := start(t, server, "a", nil)
	add := func(fields ...any) string {
		id, err := client.XAdd(context.Background(), &redis.XAddArgs{Stream: topic, Values: fields}).Result()
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	id := add("url", "https://git.example/acme/widgets.git", "ref", "refs/heads/main")
	m := w.next()
	if m.UUID != id {
		t.Errorf("UUID %s; want the entry's id %s", m.UUID, id)
	}
	change, err := events.ParseChange(m.Payload)
	if err != nil || change.Repo.String() != "acme/widgets" || change.Ref.String() != "refs/heads/main" {
		t.Errorf("change %+v, %v", change, err)
	}
	m.Ack()
	add("id", "mine", "url", "https://git.example/acme/widgets.git")
	m = w.next()
	if m.UUID != "mine" {
		t.Errorf("UUID %s; want the field's", m.UUID)
	}
	m.Ack()
	clean(t, client)
}

func TestPublisherCannotDelayOrUncountMessages(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := message.NewMessage("c1", []byte("{}"))
	m.Metadata.Set("_watermill_delayed_for", "87600h")
	m.Metadata.Set(stream.MetadataUncounted, "true")
	if err := publisher.Publish(topic, m); err != nil {
		t.Fatal(err)
	}
	w := start(t, server, "a", nil)
	w.next().Nack()
	again := w.next()
	if got := delivery(t, again).Attempt(); got != 2 {
		t.Errorf("attempt %d; want 2", got)
	}
	again.Ack()
	clean(t, client)
}
