package handlers

import (
	"slices"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// When the default branch changes, the first sync that notices publishes the new branch under the
// plain name, for all apps. The old branch may no longer be published, so the commits that other
// apps have received of it are obsolete. The same step requests a poll, which knows whether the remote still has
// it, and requests a sync for each of these apps, because they may have no pending change.

// replaced returns the state fields to set and to drop, and the changes to request after a sync has published another
// default branch. If no other watch is concerned, it drops the fields of refs that are no longer published. Other
// apps that watch the default branch, and have received the new one under its own name, are given it again: their next
// result lists all of its files.
func (h *Handlers) replaced(
	job Job, known state.Repo, watches []watch.Watch, result events.Result,
) (set map[string]string, drop []string, requested []events.Change, err error) {
	switch former := known.Default(); {
	case !result.IsDefault(), former == result.Ref.String():
		return nil, nil, nil, nil
	case former == "" && (known.Head(result.Ref) != "" || len(known.Heads()) == 0): // unknown, or the first sync
		return nil, nil, nil, nil
	}
	isOwn := func(w watch.Watch) bool { return w.App == job.Change.App && w.Ref.IsDefault() }
	if others := slices.DeleteFunc(slices.Clone(watches), isOwn); len(others) == 0 {
		published, _, err := h.Volume.Published(result.Repo)
		return nil, unpublished(known, published), nil, err
	}
	set = known.RepeatFields(result.Ref, func(app string) bool {
		return app != job.Change.App &&
			slices.ContainsFunc(watches, func(w watch.Watch) bool { return w.App == app && w.Ref.IsDefault() })
	})
	requested, err = pollAfter(job)
	return set, nil, requested, err
}

// pollAfter returns the change that polls the repository of a job.
func pollAfter(job Job) ([]events.Change, error) {
	poll, err := events.NewChange(events.Change{
		ID: nextID(job, nil), Type: events.ChangeDue, Source: job.Change.Source, Repo: job.Change.Repo,
	})
	return []events.Change{poll}, err
}
