package feed_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/access"
	"lockstep/internal/feed"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// TestRemovedWatchEndsResultsThatWait has results in memory that a client has not got yet, because it was away or reads slowly, when a watch of its app is
// removed, or a credential refused: it does not get them.
func TestRemovedWatchEndsResultsThatWait(t *testing.T) {
	t.Parallel()
	const check = time.Millisecond
	w := newWorld(t, redistest.Start(t), func(cfg *feed.Config) { cfg.Check = check })
	widgets := w.watch("docs", "acme/widgets", "")
	gadgets := w.watch("docs", "acme/gadgets", "")
	w.watch("docs", "acme/marker", "")
	operator := w.open("", feed.Start{}) // keeps the results in memory, from its first one on
	operator.want("synced " + w.add("docs", "acme/widgets"))
	at := testenv.Must(w.feed.Locate(t.Context(), feed.Start{}))(t).String()
	for _, repo := range []string{"acme/widgets", "acme/gadgets", "acme/marker"} {
		operator.want("synced " + w.add("docs", repo))
	}
	testenv.Must(w.registry.Remove(t.Context(), widgets.Key()))(t)
	testenv.Must(w.client.HSet(t.Context(), events.DefaultNamespace.Repo(gadgets.Repo), "trouble", testenv.Refused("robot:docs")).Result())(t)
	for removed := time.Now(); time.Since(removed) <= check; { // what was decided before counts for that long
	}
	w.open("docs", feed.Start{Cursor: at}).want("synced r4")
}

// TestAudiencesAreDecidedAgainOnce has clients get results in memory that are older than Check: who may read them is decided again for all of them
// together, and not read from Redis for each.
func TestAudiencesAreDecidedAgainOnce(t *testing.T) {
	t.Parallel()
	const clients, results, check = 30, 50, time.Second
	var decisions atomic.Int64
	w := newWorld(t, redistest.Start(t), func(cfg *feed.Config) {
		cfg.Check = check
		sources := cfg.Sources()
		decide := sources[0].Audiences
		sources[0].Audiences = func(ctx context.Context, results []events.Result, failed func(events.Result, error)) ([]access.Audience, error) {
			decisions.Add(1)
			return decide(ctx, results, failed)
		}
		cfg.Sources = func() []feed.Source { return sources }
	})
	w.watch("docs", "acme/widgets", "")
	operator := w.open("", feed.Start{}) // keeps the results in memory, from its first one on
	operator.want("synced " + w.add("docs", "acme/widgets"))
	at := testenv.Must(w.feed.Locate(t.Context(), feed.Start{}))(t).String()
	var want []string
	for range results {
		want = append(want, "synced "+w.add("docs", "acme/widgets"))
	}
	operator.want(want...)
	time.Sleep(check) // what was decided before counts for that long
	before := decisions.Load()
	for range clients {
		w.open("docs", feed.Start{Cursor: at}).want(want...)
	}
	if n := decisions.Load() - before; n >= clients/2 {
		t.Errorf("decided %d times for %d clients", n, clients)
	}
}
