package handlers_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/handlers"
	"lockstep/internal/testenv"
	"lockstep/router"
)

// resultsByChange returns the results by the ID of their change.
func resultsByChange(t *testing.T, client redis.UniversalClient) map[string]events.Result {
	t.Helper()
	all := map[string]events.Result{}
	for _, entry := range client.XRange(context.Background(), events.DefaultNamespace.Results(), "-", "+").Val() {
		msg := testenv.Must(redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(entry.Values))(t)
		result := testenv.Must(events.ParseResult(msg.Payload))(t)
		all[result.Deliveries[0]] = result
	}
	return all
}

// TestChangeIsSkippedWhileItsOwnProcessIsBusy has one worker, whose handler has the repository until the end.
func TestChangeIsSkippedWhileItsOwnProcessIsBusy(t *testing.T) {
	t.Parallel()
	client := startRedis(t)
	began, free := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	var handled []string
	changes := &handlers.Changes{Namespace: events.DefaultNamespace, Log: quiet(),
		Handler: func(_ context.Context, job handlers.Job) (handlers.Outcome, error) {
			mu.Lock()
			handled = append(handled, job.Change.ID)
			mu.Unlock()
			if job.Change.ID == "first" {
				close(began)
				<-free
			}
			return handlers.Outcome{Result: job.Result(events.ResultSynced)}, nil
		}}
	sub := newSubscriber(t, client, func(cfg *stream.SubscriberConfig) {
		cfg.Key, cfg.Beside, cfg.MaxIdleTime = changes.Key, changes.Beside, time.Hour
	})
	run(t, router.Route{Name: "changes", Topic: topic, Subscriber: sub, Handler: changes.Handle,
		Locker: newLocker(t, client, time.Minute), Request: changes.Request, Dispose: changes.Dispose(router.Retry{})})
	publishChange(t, client, events.Change{ID: "first"})
	<-began
	publishChange(t, client, events.Change{ID: "waits"})
	publishChange(t, client, events.Change{ID: "skips", OnBusy: events.BusySkip})
	publishChange(t, client, events.Change{ID: "skips its poll", Type: events.ChangeDue, OnBusy: events.BusySkip})
	stopWhen(t, func() bool { return len(resultsByChange(t, client)) == 2 })
	results := resultsByChange(t, client)
	if r := results["skips"]; r.Type != events.ResultFailed || r.Class != events.ClassBusy || !r.Retryable {
		t.Errorf("%+v, want it skipped", r)
	}
	if r := results["skips its poll"]; r.Type != events.ResultPolled || r.Class != events.ClassBusy {
		t.Errorf("%+v, want the poll skipped", r)
	}
	close(free)
	stopWhen(t, func() bool { return len(resultsByChange(t, client)) == 4 })
	if want := []string{"first", "waits"}; !slices.Equal(handled, want) {
		t.Errorf("handled %q, want %q", handled, want)
	}
	if n := client.XLen(context.Background(), events.DefaultNamespace.Dead()).Val(); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}
