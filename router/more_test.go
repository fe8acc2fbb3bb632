package router_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/router"
)

// An outcome may have many results: they follow the first in order, and are settled with the state of views.
func TestFurtherResultsAreSettledInOneStep(t *testing.T) {
	t.Parallel()
	const more = 3000
	ctx, client := context.Background(), startRedis(t)
	views := string(events.DefaultNamespace) + "views:acme/"
	client.HSet(ctx, views+"widgets", "old", "1", "kept", "1")
	client.HSet(ctx, views+"gadgets", "kept", "2")
	handled := newSignal(1)
	changes := router.Changes{Namespace: events.DefaultNamespace, Source: "/w1", Log: quiet(),
		Handler: func(_ context.Context, job events.Job) (events.Outcome, error) {
			defer handled.one()
			outcome := events.Outcome{
				Result: job.Result(events.ResultMoved), Views: map[string]string{"old": "", "new": "1"}, ViewsTo: map[string]string{"moved": "1"},
			}
			for i := range more {
				result := job.Result(events.ResultView)
				result.ID += fmt.Sprint("/", i)
				outcome.More = append(outcome.More, result)
			}
			return outcome, nil
		},
	}
	run(t, router.Route{Name: "changes", Topic: topic, Subscriber: newSubscriber(t, client),
		Handler: changes.Handle, Locker: newLocker(t, client, 30*time.Second), Request: changes.Request,
		Dispose: router.Disposer{Failed: changes.Failed, Log: quiet(), Retry: router.Retry{MaxAttempts: 1, Base: time.Millisecond}}})
	publishTo(t, newPublisher(t, client), topic, "m1",
		[]byte(`{"type":"moved","repo":"acme/widgets","to":"acme/gadgets","url":"https://example.com/acme/gadgets.git","id":"c1"}`))
	within(t, handled.all, "the handler")
	stopWhen(t, func() bool { return client.XLen(ctx, events.DefaultNamespace.Results()).Val() == 1+more })
	first := ""
	for i, entry := range client.XRange(ctx, events.DefaultNamespace.Results(), "-", "+").Val() {
		payload, _ := entry.Values["payload"].(string)
		result, err := events.ParseResult([]byte(payload))
		if err != nil || result.Source != "/w1" {
			t.Fatalf("result %d: %+v, %v", i, result, err)
		}
		if i == 0 {
			first = result.ID
		} else if want := fmt.Sprint(first, "/", i-1); result.ID != want {
			t.Fatalf("result %d is %s, want %s", i, result.ID, want)
		}
	}
	if got, want := client.HGetAll(ctx, views+"widgets").Val(), map[string]string{"kept": "1", "new": "1"}; !maps.Equal(got, want) {
		t.Errorf("the views are %v, want %v", got, want)
	}
	if got, want := client.HGetAll(ctx, views+"gadgets").Val(), map[string]string{"kept": "2", "moved": "1"}; !maps.Equal(got, want) {
		t.Errorf("the views of the new path are %v, want %v", got, want)
	}
}
