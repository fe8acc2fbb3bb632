package handlers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/handlers"
	"lockstep/internal/testenv"
	"lockstep/router"
)

// publishChange adds a change to acme/widgets and returns its entry.
func publishChange(t *testing.T, client redis.UniversalClient, c events.Change) string {
	t.Helper()
	c.URL = "https://example.com/acme/widgets.git"
	c = testenv.Must(events.NewChange(c))(t)
	document := testenv.Must(json.Marshal(c))(t)
	entry, err := newPublisher(t, client).Add(context.Background(), topic, message.NewMessage(c.ID, document))
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

// coalescing is a route of changes whose key is the repository. The first handler waits until it has the
// given number of siblings.
func coalescing(t *testing.T, client redis.UniversalClient, siblings int, handler handlers.Handler) router.Route {
	t.Helper()
	changes := &handlers.Changes{Namespace: events.DefaultNamespace, Log: quiet(), Handler: handler}
	sub, err := stream.NewSubscriber(stream.SubscriberConfig{Client: client, Reader: anotherClient(client), Prefix: prefix, ConsumerGroup: "workers", Log: quiet(),
		Key: changes.Key, Window: 16, MaxIdleTime: time.Hour}, nil) // so that no parked change comes back by itself, however slow the machine is
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Close() })
	first := true
	return router.Route{Name: "changes", Topic: topic, Subscriber: sub, Locker: newLocker(t, client, time.Minute), Request: changes.Request,
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			if delivery, _ := stream.DeliveryOf(msg); first {
				first = false
				stopWhen(t, func() bool {
					n := 0
					for page, more := "", true; more; more = page != "" {
						found, next, err := delivery.Siblings(msg.Context(), page, 100)
						if err != nil {
							t.Error(err)
							return true
						}
						n, page = n+len(found), next
					}
					return n == siblings
				})
			}
			return changes.Handle(msg)
		},
		Dispose: changes.Dispose(router.Retry{MaxAttempts: 1})}
}

func TestCoveredChangesAreSettledAlong(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), startRedis(t)
	const total = 150
	for n := range total {
		app := "docs"
		if n%50 == 49 {
			app = "search"
		}
		publishChange(t, client, events.Change{ID: fmt.Sprintf("c%d", n), App: app})
	}
	handled := 0
	run(t, coalescing(t, client, total-1, func(_ context.Context, job handlers.Job) (handlers.Outcome, error) {
		handled++ // under the lease
		return handlers.Outcome{Result: job.Result(events.ResultSynced), Covers: func(_ context.Context, other handlers.Job) (handlers.Outcome, bool) {
			return handlers.Outcome{Result: other.Result(events.ResultSynced)}, other.Change.App == job.Change.App
		}}, nil
	}))
	stopWhen(t, func() bool {
		return client.XLen(ctx, events.DefaultNamespace.Results()).Val() >= total && client.XPending(ctx, topic, "workers").Val().Count == 0
	})
	resultsOf := map[string]int{}
	for _, entry := range client.XRange(ctx, events.DefaultNamespace.Results(), "-", "+").Val() {
		msg := testenv.Must(redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(entry.Values))(t)
		result := testenv.Must(events.ParseResult(msg.Payload))(t)
		resultsOf[result.Deliveries[0]]++
	}
	for n := range total {
		if id := fmt.Sprintf("c%d", n); resultsOf[id] != 1 {
			t.Errorf("change %s has %d results, want 1", id, resultsOf[id])
		}
	}
	if handled != 2 {
		t.Errorf("%d changes were handled, want one of each app", handled)
	}
}
