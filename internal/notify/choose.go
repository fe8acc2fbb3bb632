package notify

import (
	"cmp"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/internal/watch"
)

// quiet lists the classes of failures that apps are not notified of: the repository is fine and another
// result follows, or the app no longer watches it.
var quiet = []events.Class{events.ClassBusy, events.ClassUnwatched, events.ClassShutdown}

// notable reports whether apps are notified of results like r.
func notable(r events.Result) bool {
	switch r.Type {
	case events.ResultSynced:
		return r.App != "" && !r.Unchanged()
	case events.ResultFailed:
		return r.App != "" && !slices.Contains(quiet, r.Class)
	case events.ResultRemoved, events.ResultMoved:
		return true
	}
	return false
}

// about returns the repository whose watches a result concerns.
func about(r events.Result) events.RepoPath {
	if r.Type == events.ResultMoved {
		return r.To
	}
	return r.Repo
}

// recipients returns the watches to notify of a result: for each app, the one that selects the ref most specifically.
func recipients(r events.Result, set watch.Set) []watch.Watch {
	best := map[string]watch.Watch{}
	for _, w := range set.Watches {
		if w.NotifyURL == "" || w.Silenced != "" || r.App != "" && r.App != w.App {
			continue
		}
		if r.Type == events.ResultSynced && !r.Full && !r.Truncated && !w.Concerns(r.Files) {
			continue
		}
		rank := selects(w.Ref, r)
		if other, ok := best[w.App]; rank > 0 && (!ok || rank > selects(other.Ref, r)) {
			best[w.App] = w
		}
	}
	chosen := make([]watch.Watch, 0, len(best))
	for _, w := range best {
		chosen = append(chosen, w)
	}
	slices.SortFunc(chosen, func(a, b watch.Watch) int { return cmp.Compare(a.App, b.App) })
	return chosen
}

// selects ranks how specifically a selector matches a result; 0 means that it does not match.
func selects(s watch.Selector, r events.Result) int {
	whole := r.Ref.IsZero() && (r.Type == events.ResultRemoved || r.Type == events.ResultMoved)
	switch {
	case whole: // concerns every watch of the repository
		return 1
	case s.IsDefault():
		// A tree published under the plain name belongs to the default branch. A failure has no published name: it counts for
		// the default branch unless another watch of the app selects its ref.
		switch {
		case r.Ref.IsZero(), r.Type == events.ResultSynced && !strings.Contains(r.Path, "@"):
			return 3
		case r.Type == events.ResultFailed:
			return 1
		}
	case !s.Matches(r.Ref):
	case s.IsPattern():
		return 2
	default:
		return 4
	}
	return 0
}
