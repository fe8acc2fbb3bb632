package watch

import "lockstep/events"

// Notable reports whether apps are notified of results like r. They are not of a failure of [events.ClassBusy]: the
// repository is fine and another result follows, or the app no longer watches it.
func Notable(r events.Result) bool {
	switch r.Type {
	case events.ResultSynced:
		return r.App != "" && !r.Unchanged()
	case events.ResultFailed:
		return r.App != "" && r.Class != events.ClassBusy
	case events.ResultView:
		return r.App != ""
	case events.ResultRemoved: // what answers a change for no app is about what apps are told by results of their own
		return r.App != ""
	case events.ResultMoved, events.ResultPurged:
		return true
	}
	return false
}

// ConcernedRepo returns the repository whose watches a result concerns.
func ConcernedRepo(r events.Result) events.RepoPath {
	if r.Type == events.ResultMoved {
		return r.To
	}
	return r.Repo
}

// IsWhole reports whether a result concerns a repository as a whole, and so every watch of it.
func IsWhole(r events.Result) bool {
	return r.Ref.IsZero() && (r.Type == events.ResultRemoved || r.Type == events.ResultMoved ||
		r.Type == events.ResultPurged)
}

// Rank returns how specifically s selects the ref of a result: if several watches of an app do, the one with
// the highest rank applies. It returns 0 if s does not select the ref.
func (s Selector) Rank(r events.Result) int {
	switch {
	case IsWhole(r):
		return 1
	case s.IsDefault():
		// A tree published under the plain name belongs to the default branch. A failure has no published name: it counts for
		// the default branch unless another watch of the app selects its ref.
		switch {
		case r.Ref.IsZero(), r.Type != events.ResultFailed && r.IsDefault():
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
