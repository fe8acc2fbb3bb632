package handlers

import (
	"slices"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// When the default branch changes, the first sync that notices publishes the new branch under the
// plain name, for all apps. The old branch may no longer be published, so the commits that other
// apps have received of it are obsolete. The same step requests a poll, which requests a sync for
// each of these apps, because they may have no pending change.

// replaced returns the state fields to drop and the changes to request after a sync has published
// another default branch. It drops the fields of refs that are no longer published. For other apps
// that watch the default branch, it also drops the commits of the new branch that they have
// received under its own name, so that their next result lists all of its files.
func (h *Handlers) replaced(
	job Job, known state.Repo, watches []watch.Watch, result events.Result,
) (drop []string, requested []events.Change, err error) {
	switch former := known.Default(); {
	case !result.IsDefault(), former == result.Ref.String():
		return nil, nil, nil
	case former == "" && (known.Head(result.Ref) != "" || len(known.Heads()) == 0): // unknown, or the first sync
		return nil, nil, nil
	}
	published, _, err := h.Volume.Published(result.Repo)
	if err != nil {
		return nil, nil, err
	}
	drop = unpublished(known, published, nil)
	others := false
	for _, w := range watches {
		if w.App == job.Change.App && w.Ref.IsDefault() {
			continue
		}
		others = true
		if w.App != job.Change.App && w.Ref.IsDefault() {
			drop = append(drop, known.GivenFields(w.App, result.Ref)...)
		}
	}
	if !others {
		return drop, nil, nil
	}
	slices.Sort(drop)
	requested, err = pollAfter(job)
	return slices.Compact(drop), requested, err
}

// pollAfter returns the change that polls the repository of a job.
func pollAfter(job Job) ([]events.Change, error) {
	poll, err := events.NewChange(events.Change{
		ID: nextID(job, nil), Type: events.ChangeDue, Source: job.Change.Source, Repo: job.Change.Repo,
	})
	return []events.Change{poll}, err
}

// baseFor returns the commit to report a change's differences from: the last one that the app received, or
// none if another branch has become the default one. The nameless app reads the volume itself, so its base is
// the published commit.
func baseFor(known state.Repo, change events.Change) func(ref events.Ref, published string) string {
	return func(ref events.Ref, published string) string {
		given := known.Received(change.App, ref)
		if change.Ref.IsZero() && known.Default() != "" && known.Default() != ref.String() {
			given = ""
		}
		if given != "" || change.App != "" || known.Repeats("", ref) {
			return given
		}
		return published
	}
}
