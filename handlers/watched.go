package handlers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/volume"
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
func (h *Handlers) checkUnwatched(change events.Change, watches []watch.Watch) error {
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

// forgetApps forgets what was given to apps without a watch, and so their refused credentials. It returns the names of
// the fields.
func forgetApps(known state.Repo, watches []watch.Watch) []string {
	apps, credentials := map[string]bool{}, map[string]bool{}
	for _, w := range watches {
		apps[w.App], credentials[w.Credential] = true, true
	}
	drop := known.ForgetApps(apps, credentials)
	forgetUnwatched(known, watches)
	return drop
}

// storedRefs are the refs of a repository that are known without asking its remote.
type storedRefs struct {
	published volume.Published
	listed    map[events.Ref]volume.ListedRef
}

func (h *Handlers) storedRefs(repo events.RepoPath) (s storedRefs, err error) {
	if s.published, _, err = h.Volume.Published(repo); err != nil {
		return storedRefs{}, err
	}
	s.listed, err = h.Volume.ListedRefs(repo)
	return s, err
}

// storedOnce returns a function that reads the stored refs when it is first called. They stay the same as
// long as this lease publishes nothing.
func (h *Handlers) storedOnce(repo events.RepoPath) func() (storedRefs, error) {
	return sync.OnceValues(func() (storedRefs, error) { return h.storedRefs(repo) })
}

// keeps reports whether a watch keeps a ref that may be published.
func (s storedRefs) keeps(w watch.Watch, ref events.Ref) bool {
	changed := map[events.Ref]time.Time{ref: {}}
	maps.Copy(changed, s.published.Changed)
	for one, listed := range s.listed {
		isNewer := s.published.Commits[one] != listed.Commit && s.published.Changed[one].After(listed.Changed)
		if isListing(listed) && !isNewer {
			changed[one] = listed.Changed
		}
	}
	offer := watch.OfferOf(s.published.Plain, changed)
	return watch.NamesOf([]watch.Watch{w}, offer).Wanted[ref]
}

// checkPicked refuses a change of a tag that the patterns of its app leave out. A branch is kept, because it
// changes now.
func checkPicked(change events.Change, selecting []watch.Watch, storedRefs func() (storedRefs, error)) error {
	isPattern := func(w watch.Watch) bool { return w.Ref.IsPattern() }
	if !change.Ref.IsTag() || !slices.ContainsFunc(selecting, isPattern) {
		return nil
	}
	stored, err := storedRefs()
	if err != nil {
		return err
	}
	limit := 0
	for _, w := range selecting {
		if !w.Ref.IsPattern() || stored.keeps(w, change.Ref) {
			return nil
		}
		limit = max(limit, w.Limit())
	}
	return unwatched("%s of %s is left out: it is not among the last %d tags by version, the limit of the watch of "+
		"%s; raise --max-refs to keep it",
		change.Ref, change.Repo, limit, change.App)
}

// pollIfExceeded requests a poll, which removes others, if a synced ref is published for the first time and
// more refs are published than a pattern that selects it keeps. The caller calls it for no sync that a poll
// requested, which requests the removals itself.
func (h *Handlers) pollIfExceeded(
	job Job, known state.Repo, watches []watch.Watch, synced events.Result,
) ([]events.Change, error) {
	limited := slices.DeleteFunc(slices.Clone(watches), func(w watch.Watch) bool {
		return !w.Ref.IsPattern() || !w.Ref.Matches(synced.Ref)
	})
	if len(limited) == 0 || known.Head(synced.Ref) != "" {
		return nil, nil
	}
	published, _, err := h.Volume.Published(synced.Repo)
	if err != nil {
		return nil, err
	}
	for _, left := range watch.NamesOf(limited, watch.OfferOf(published.Plain, published.Changed)).Left {
		if len(left) > 0 {
			return pollAfter(job)
		}
	}
	return nil, nil
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
		Disposition: events.Permanent, Scope: events.ScopeNone, Class: events.ClassBusy,
		Err: fmt.Errorf(format, args...),
	}
}
