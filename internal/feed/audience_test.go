package feed_test

import (
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/feed"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
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
	operator := w.open("", feed.Start{}) // keeps the results in memory
	at := testenv.Must(w.feed.Locate(t.Context(), feed.Start{}))(t).String()
	for _, repo := range []string{"acme/widgets", "acme/gadgets", "acme/marker"} {
		operator.want("synced " + w.add("docs", repo))
	}
	testenv.Must(w.registry.Remove(t.Context(), widgets.Key()))(t)
	testenv.Must(0, state.NewStore(w.client, events.DefaultNamespace).Deny(t.Context(), gadgets.Repo, "docs", "robot", events.ClassAuth))(t)
	for removed := time.Now(); time.Since(removed) <= check; { // what was decided before counts for that long
	}
	w.open("docs", feed.Start{Cursor: at}).want("synced r3")
}
