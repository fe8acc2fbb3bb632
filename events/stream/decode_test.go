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

// poisoned is an unmarshaller that calls a function for messages whose ID mentions poison.
type poisoned func() (*message.Message, error)

func (p poisoned) Unmarshal(values map[string]any) (*message.Message, error) {
	id, _ := values["id"].(string)
	if strings.Contains(id, "poison") {
		return p()
	}
	return message.NewMessage(id, nil), nil
}

func TestPanicOnAMessageMakesItADeadLetter(t *testing.T) {
	t.Parallel()
	poison := func(m *message.Message) bool { return strings.Contains(m.UUID, "poison") }
	for name, tc := range map[string]struct {
		change func(*stream.SubscriberConfig)
		reason string
	}{
		"Key panics": {func(c *stream.SubscriberConfig) {
			c.Key = func(m *message.Message) string {
				if poison(m) {
					panic("no key")
				}
				return m.UUID
			}
		}, "panicked: no key"},
		"Beside panics": {func(c *stream.SubscriberConfig) {
			c.Beside = func(m *message.Message) bool {
				if poison(m) {
					panic("not known")
				}
				return false
			}
		}, "panicked: not known"},
		"the key contains NUL": {func(c *stream.SubscriberConfig) {
			c.Key = func(m *message.Message) string {
				if poison(m) {
					return "a\x00+b"
				}
				return m.UUID
			}
		}, "contains NUL"},
		"Unmarshaller panics": {func(c *stream.SubscriberConfig) {
			c.Unmarshaller = poisoned(func() (*message.Message, error) { panic("cannot decode") })
		}, "panic: cannot decode"},
		"Unmarshaller returns nothing": {func(c *stream.SubscriberConfig) {
			c.Unmarshaller = poisoned(func() (*message.Message, error) { return nil, nil })
		}, "no message, and no error"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			server := redistest.Start(t)
			client := server.Client()
			w := start(t, server, "a", tc.change)
			for _, id := range []string{"good", "poison", "also good"} {
				if err := client.XAdd(ctx, xadd(topic, "id", id)).Err(); err != nil {
					t.Fatal(err)
				}
			}
			for _, id := range []string{"good", "also good"} {
				m := w.next()
				if m.UUID != id {
					t.Errorf("%s comes; want %s", m.UUID, id)
				}
				m.Ack()
			}
			clean(t, client)
			letters := entries(t, client, dead)
			if len(letters) != 1 {
				t.Fatalf("%d dead letters; want one", len(letters))
			}
			if text, _ := letters[0].Values["error"].(string); !strings.Contains(text, tc.reason) || letters[0].Values["reason"] != "undecodable" {
				t.Errorf("dead letter %v; want reason undecodable, and an error with %q", letters[0].Values, tc.reason)
			}
		})
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
	m := message.NewMessage("c1", []byte("{}"))
	m.Metadata.Set("_watermill_delayed_for", "87600h")
	m.Metadata.Set(stream.MetadataUncounted, "true")
	publishAll(t, client, m)
	w := start(t, server, "a", nil)
	w.next().Nack()
	again := w.next()
	if got := delivery(t, again).Attempt(); got != 2 {
		t.Errorf("attempt %d; want 2", got)
	}
	again.Ack()
	clean(t, client)
}
