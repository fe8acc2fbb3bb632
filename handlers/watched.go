package handlers

import (
	"context"
	"maps"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// Watches is the registry of who watches what; a [watch.Registry] is.
type Watches interface {
	Of(ctx context.Context, repo events.RepoPath) (watch.Set, error)
	Move(ctx context.Context, from, to events.RepoPath, url string) (moved int, err error)
}

// What the registry says is asked under the repository's lease, and counts from then on: whoever stops
// watching takes the watch out of the registry first, and asks for the removal of the clone in the same
// step. A sync that still found the watch ends before that removal has its turn; one that comes after it
// finds none. Whoever watches again meanwhile is found by the removal, or asks for a sync that comes after it.

// checkWatched refuses a change that was asked for a watch which is no more.
func (h *Handlers) checkWatched(ctx context.Context, change events.Change) error {
	if !change.Watched {
		return nil
	}
	set, err := h.Watches.Of(ctx, change.Repo)
	if err != nil {
		return redisFault(err)
	}
	selects := func(w watch.Watch) bool {
		return w.App == change.App && (w.Ref.Matches(change.Ref) || w.Ref.IsDefault() && change.Ref.IsZero())
	}
	if slices.ContainsFunc(set.Watches, selects) {
		return nil
	}
	return events.Errorf(events.Permanent, events.ClassUnwatched, "%s does not watch %s of %s any more", change.App, refName(change.Ref), change.Repo)
}

// checkUnwatched refuses to remove what somebody watches, a repository or one ref of it, without asking the
// remote.
func (h *Handlers) checkUnwatched(ctx context.Context, change events.Change) error {
	set, err := h.Watches.Of(ctx, change.Repo)
	if err != nil {
		return redisFault(err)
	}
	watches := set.Watches
	if !change.Ref.IsZero() {
		published, _, err := h.Repos.Published(change.Repo)
		if err != nil {
			return err
		}
		watches = slices.DeleteFunc(slices.Clone(watches), func(w watch.Watch) bool { return !slices.Contains(kept(w.Ref, published), change.Ref) })
	}
	if len(watches) == 0 {
		return nil
	}
	return events.Errorf(events.Permanent, events.ClassConflict, "it is kept, for it is watched by %s; stop watching it first, with lockstep watch rm", appsOf(watches))
}

// kept are the published refs that a selector wants to stay so. Who watches the default branch watches what the
// plain name is published for; of a pattern, the last ones are watched.
func kept(s watch.Selector, published volume.Published) []events.Ref {
	if s.IsDefault() {
		return []events.Ref{published.Plain}
	}
	return latest(s, maps.Keys(published.Commits))
}

func appsOf(watches []watch.Watch) string {
	var apps []string
	for _, w := range watches {
		apps = append(apps, w.App)
	}
	slices.Sort(apps)
	return strings.Join(slices.Compact(apps), ", ")
}
