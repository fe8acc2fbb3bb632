package notify

import (
	"cmp"
	"maps"
	"slices"

	"lockstep/events"
	"lockstep/internal/execute"
	"lockstep/internal/ext/views"
	"lockstep/internal/watch"
)

// recipients returns the watches to notify of a result: for each app, the one that selects the ref most specifically. Apps
// with a command need no URL, and are only notified of results with a tree.
func recipients(r events.Result, set watch.Set, commands map[string]execute.Command) []watch.Watch {
	best := map[string]watch.Watch{}
	for _, w := range set.Watches {
		_, runs := commands[w.App]
		if runs && !hasTree(r) || !runs && (w.NotifyURL == "" || w.Silenced != "") || r.App != "" && r.App != w.App {
			continue
		}
		if !concerns(w, r) {
			continue
		}
		rank := w.Ref.Rank(r)
		if other, ok := best[w.App]; rank > 0 && (!ok || rank > other.Ref.Rank(r)) {
			best[w.App] = w
		}
	}
	return slices.SortedFunc(maps.Values(best), func(a, b watch.Watch) int { return cmp.Compare(a.App, b.App) })
}

// concerns reports whether to post a result whose ref the watch selects. If the watch has views, their
// results are posted instead of that of the sync.
func concerns(w watch.Watch, r events.Result) bool {
	switch r.Type {
	case events.ResultSynced:
		return views.Of(w).Views == nil && (r.Full || r.Truncated || w.Concerns(r.Files))
	case events.ResultView:
		return views.Of(w).Views.Has(r.View)
	}
	return true
}
