package handlers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/internal/watch"
)

// The registry is read under the repository's lease. Removing a watch deletes it from the registry and
// requests the removal of the clone in the same step. So a sync that still finds the watch ends before that
// removal, and a later sync finds none. If the watch is added again meanwhile, either the removal finds it or
// the watch requests a sync after the removal.

func (h *Handlers) watches(ctx context.Context, repo events.RepoPath) ([]watch.Watch, error) {
	set, err := h.Watches.Of(ctx, repo)
	return set.Watches, redisError(err)
}

// checkWatched refuses a change for a watch that is gone, or that leaves its ref out.
func checkWatched(change events.Change, watches []watch.Watch, stored func() (storedRefs, error)) error {
	if !change.Watched {
		return nil
	}
	var selecting []watch.Watch
	for _, w := range watches {
		if w.App == change.App && (w.Ref.Matches(change.Ref) || w.Ref.IsDefault() && change.Ref.IsZero()) {
			selecting = append(selecting, w)
		}
	}
	if len(selecting) > 0 {
		return checkPicked(change, selecting, stored)
	}
	return unwatched("%s no longer watches %s of %s", change.App, refName(change.Ref), change.Repo)
}

// checkUnwatched refuses a forced removal of a repository, or a ref of it, that is watched.
func (h *Handlers) checkUnwatched(ctx context.Context, change events.Change) error {
	watches, err := h.watches(ctx, change.Repo)
	if err != nil {
		return err
	}
	if !change.Ref.IsZero() {
		stored, err := h.storedRefs(change.Repo)
		if err != nil {
			return err
		}
		watches = slices.DeleteFunc(slices.Clone(watches), func(w watch.Watch) bool { return !stored.keeps(w, change.Ref) })
	}
	if len(watches) == 0 {
		return nil
	}
	return events.Errorf(events.Permanent, events.ClassConflict,
		"it is watched by %s; remove the watch first, with lockstep watch rm", appsOf(watches))
}

func appsOf(watches []watch.Watch) string {
	var apps []string
	for _, w := range watches {
		apps = append(apps, w.App)
	}
	slices.Sort(apps)
	return strings.Join(slices.Compact(apps), ", ")
}

// unwatched returns the error of a change that need not be handled, because its app does not watch its ref.
func unwatched(format string, args ...any) error {
	return &events.Error{
		Disposition: events.Permanent, Scope: events.ScopeNone, Class: events.ClassUnwatched,
		Err: fmt.Errorf(format, args...),
	}
}
