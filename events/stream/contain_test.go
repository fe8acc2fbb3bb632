package stream_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events/stream"
	"lockstep/internal/redistest"
)

// panicking panics in the methods that it lists.
type panicking struct{ delivered, finished, lapsed bool }

func (p panicking) Delivered(string, int, int) {
	if p.delivered {
		panic("delivered")
	}
}

func (p panicking) Finished(string, string, time.Duration) {
	if p.finished {
		panic("finished")
	}
}

func (p panicking) Lapsed(string, string) {
	if p.lapsed {
		panic("lapsed")
	}
}

func TestPanicOfAConfiguredFunctionIsLoggedAndContained(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*stream.SubscriberConfig)
		logged string
	}{
		"Room":               {func(c *stream.SubscriberConfig) { c.Room = func() int { panic("no room") } }, "function=Room "},
		"Observer.Delivered": {func(c *stream.SubscriberConfig) { c.Observer = panicking{delivered: true} }, "function=Observer.Delivered "},
		"Observer.Finished":  {func(c *stream.SubscriberConfig) { c.Observer = panicking{finished: true} }, "function=Observer.Finished "},
		"Observer.Lapsed":    {func(c *stream.SubscriberConfig) { c.Observer = panicking{lapsed: true} }, "function=Observer.Lapsed "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			client := server.Client()
			former := start(t, server, "former", func(c *stream.SubscriberConfig) { c.MaxIdleTime = 200 * time.Millisecond })
			publish(t, client, 1)
			former.next()
			former.gate.cut.Store(true) // its entry lapses
			publishOne(t, client, "nacked")
			w := start(t, server, "a", tc.change)
			acked := 0
			for nacked := false; acked < 2; {
				m := w.next()
				if m.UUID == "nacked" && !nacked {
					nacked = true
					m.Nack()
					continue
				}
				m.Ack()
				acked++
			}
			clean(t, client)
			if w.log.count(tc.logged) == 0 || w.log.count("stack=") == 0 {
				t.Errorf("the panic is not logged; want %q:\n%s", tc.logged, w.log)
			}
		})
	}
}

// refusing panics for messages whose payload mentions poison.
type refusing struct{}

func (refusing) Unmarshal(values map[string]any) (*message.Message, error) {
	if id, _ := values["id"].(string); strings.Contains(id, "poison") {
		panic("cannot decode")
	}
	id, _ := values["id"].(string)
	return message.NewMessage(id, nil), nil
}

func TestMessageWithoutAKeyIsDeadLettered(t *testing.T) {
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
		"Unmarshaller panics": {func(c *stream.SubscriberConfig) { c.Unmarshaller = refusing{} }, "panic: cannot decode"},
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
