package handlers_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/handlers"
	"lockstep/internal/cells"
	"lockstep/internal/testenv"
	"lockstep/router"
)

// twoCells returns the directory of a deployment that has become the cell here, and of one more cell, there. acme/widgets is in that.
func twoCells(t *testing.T, client redis.UniversalClient) *cells.Directory {
	t.Helper()
	ctx := context.Background()
	d := testenv.Must(cells.OpenOrNew(ctx, client))(t)
	testenv.Must(d.Add(ctx, "here", events.DefaultNamespace, 0))(t)
	testenv.Must(d.Add(ctx, "there", "", 0))(t)
	must(t, d.Override(ctx, widgets(t), "here", "there", false))
	return d
}

func widgets(t *testing.T) events.RepoPath {
	t.Helper()
	repo := testenv.Must(events.ParseRepoPath("acme/widgets"))(t)
	return repo
}

// forwarding is a route of the cell here.
func forwarding(t *testing.T, client redis.UniversalClient, d *cells.Directory, handler handlers.Handler) router.Route {
	t.Helper()
	forwarder := &cells.Forwarder{Directory: d, Cell: "here"}
	changes := &handlers.Changes{Namespace: events.DefaultNamespace, Log: quiet(), Handler: handler, Elsewhere: forwarder.Forward}
	sub := newSubscriber(t, client, func(cfg *stream.SubscriberConfig) { cfg.Key, cfg.MaxIdleTime = changes.Key, time.Second })
	return router.Route{
		Name: "changes", Topic: topic, Subscriber: sub, Locker: newLocker(t, client, time.Minute), Request: changes.Request, Handler: changes.Handle,
		Before:  []message.HandlerMiddleware{changes.Forward},
		Dispose: changes.Dispose(router.Retry{MaxAttempts: 1, Base: 10 * time.Millisecond}),
	}
}

func never(t *testing.T) handlers.Handler {
	return func(_ context.Context, job handlers.Job) (handlers.Outcome, error) {
		t.Errorf("change %s was handled in a cell that does not have its repository", job.Change.ID)
		return handlers.Outcome{Result: job.Result(events.ResultSynced)}, nil
	}
}

// settledHere reports whether the workers have settled all changes of the cell here.
func settledHere(client redis.UniversalClient) bool {
	ctx := context.Background()
	last := client.XRevRangeN(ctx, topic, "+", "-", 1).Val()
	groups := client.XInfoGroups(ctx, topic).Val()
	return len(last) == 1 && len(groups) == 1 && groups[0].LastDeliveredID == last[0].ID && groups[0].Pending == 0
}

// TestRawEntryOfAnotherCellIsForwarded adds entries with XADD to the wrong cell, with an ID and without one.
func TestRawEntryOfAnotherCellIsForwarded(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), startRedis(t)
	d := twoCells(t, client)
	there := cells.PrefixOf("there")
	var ids []string
	for _, id := range []string{"", "my-change"} {
		values := []any{"repo", "acme/widgets", "url", "https://example.com/acme/widgets.git", "ref", "refs/heads/main"}
		if id != "" {
			values = append(values, "id", id)
		}
		entry := testenv.Must(client.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: values}).Result())(t)
		if id == "" {
			id = entry
		}
		ids = append(ids, id)
	}
	run(t, forwarding(t, client, d, never(t)))
	stopWhen(t, func() bool { return client.XLen(ctx, there.Changes()).Val() == 2 && settledHere(client) })
	if n := client.XLen(ctx, events.DefaultNamespace.Results()).Val(); n != 0 {
		t.Errorf("%d results in the cell that has forwarded", n)
	}

	// The other cell handles them under their IDs.
	handled := make(chan string, 2)
	changes := &handlers.Changes{Namespace: there, Log: quiet(), Elsewhere: (&cells.Forwarder{Directory: d, Cell: "there"}).Forward,
		Handler: func(_ context.Context, job handlers.Job) (handlers.Outcome, error) {
			handled <- job.Change.ID
			return handlers.Outcome{Result: job.Result(events.ResultSynced)}, nil
		}}
	sub := newSubscriber(t, client, func(cfg *stream.SubscriberConfig) { cfg.Prefix, cfg.Key = string(there), changes.Key })
	run(t, router.Route{Name: "changes", Topic: there.Changes(), Subscriber: sub, Handler: changes.Handle, Before: []message.HandlerMiddleware{changes.Forward}, Dispose: router.Disposer{Log: quiet()}})
	got := map[string]bool{<-handled: true, <-handled: true}
	if !got[ids[0]] || !got[ids[1]] {
		t.Errorf("handled %v, want %v", got, ids)
	}
}

// TestEntryIsForwardedOnceIfTheWorkerDiesBetweenTheSteps kills the first worker after it has added the entry in the other cell.
func TestEntryIsForwardedOnceIfTheWorkerDiesBetweenTheSteps(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), startRedis(t)
	d := twoCells(t, client)
	there := cells.PrefixOf("there")
	entry := publishChange(t, client, events.Change{ID: "c1"})
	forwarder := &cells.Forwarder{Directory: d, Cell: "here"}

	own := anotherClient(client) // its connections end with the worker
	sub := newSubscriber(t, own, func(cfg *stream.SubscriberConfig) { cfg.MaxIdleTime = time.Second })
	messages := testenv.Must(sub.Subscribe(ctx, topic))(t)
	msg := <-messages
	if to, err := forwarder.Forward(msg, entry, widgets(t)); to != "there" || err != nil {
		t.Fatalf("%q, %v", to, err)
	}
	must(t, own.Close())

	run(t, forwarding(t, client, d, never(t)))
	stopWhen(t, func() bool { return settledHere(client) })
	if n := client.XLen(ctx, there.Changes()).Val(); n != 1 {
		t.Errorf("%d entries in the other cell, want 1", n)
	}
}
