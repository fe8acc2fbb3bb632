package notify

import (
	"cmp"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/internal/watch"
)

// quiet are the faults that an app is not told of: nothing is wrong with its repository, and another result
// follows, or it does not watch any more.
var quiet = []events.Class{events.ClassBusy, events.ClassUnwatched, events.ClassShutdown}

// notable reports whether a result is one that apps are told of at all.
func notable(r events.Result) bool {
	switch r.Type {
	case events.ResultSynced:
		return r.App != "" && r.Before != r.After
	case events.ResultFailed:
		return r.App != "" && !slices.Contains(quiet, r.Class)
	case events.ResultRemoved, events.ResultMoved:
		return true
	}
	return false
}

// about is the repository whose watches a result concerns.
func about(r events.Result) events.RepoPath {
	if r.Type == events.ResultMoved {
		return r.To
	}
	return r.Repo
}

// recipients are those of a repository's watches by which apps are told of a result: of each app whom it
// concerns the one that says most exactly what it is about.
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

// selects is how exactly a selector says what a result is about: not at all is 0.
func selects(s watch.Selector, r events.Result) int {
	whole := r.Ref.IsZero() && (r.Type == events.ResultRemoved || r.Type == events.ResultMoved)
	switch {
	case whole: // it concerns every watch of the repository
		return 1
	case s.IsDefault():
		// What is published by the plain name is of the default branch. A failure has no name; that of an
		// app's own change is one of its default branch unless another of its watches selects the ref.
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
