package handlers

import (
	"context"
	"math/rand/v2"
	"slices"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// deny records that the remote has refused an app's credential, or hides the repository from it, if err says so. Until a sync with
// that credential succeeds, the app's tokens read nothing of the repository. An app that has received nothing needs no record, and a
// credential that may have been replaced meanwhile gets one more attempt. The returned error is that of Redis.
func (h *Handlers) deny(ctx context.Context, job Job, known state.Repo, app, credential string, err error) error {
	class := events.ClassOf(err)
	if volume.IsOfSubmodule(err) || class != events.ClassAuth && class != events.ClassNotFound {
		return nil
	}
	renewed := events.DispositionOf(err) != events.Permanent && job.Attempt <= 1
	if renewed || app == "" || known.Denied(app, credential) == class || !known.HasGiven(app) {
		return nil
	}
	if err := h.States.Deny(ctx, job.Change.Repo, app, credential, class); err != nil {
		return redisError(err)
	}
	return nil
}

// denyAll does the same for all watches of a poll with the credential that was refused.
func (h *Handlers) denyAll(ctx context.Context, job Job, watches []watch.Watch, from source, err error) error {
	known, failed := h.known(ctx, job.Change.Repo)
	if failed != nil {
		return failed
	}
	for _, w := range watches {
		if watched(w) != from {
			continue
		}
		if failed := h.deny(ctx, job, known, w.App, w.Credential, err); failed != nil {
			return failed
		}
	}
	return nil
}

// proveOther lists the refs with the credential of an app that the poll has not used, chosen at
// random, to learn whether the remote still accepts it: without pushes, nothing else would reveal a
// refusal. Failures of other classes are left to the next poll.
func (h *Handlers) proveOther(ctx context.Context, job Job, watches []watch.Watch, admitted watch.Watch) error {
	known, err := h.known(ctx, job.Change.Repo)
	if err != nil {
		return err
	}
	var others []source
	for _, w := range watches {
		from := watched(w)
		if from != watched(admitted) && known.HasGiven(w.App) && known.Denied(w.App, w.Credential) == "" && !slices.Contains(others, from) {
			others = append(others, from)
		}
	}
	if len(others) == 0 {
		return nil
	}
	from := others[rand.IntN(len(others))]
	_, err = h.listRefs(ctx, job, job.Change.Repo, from)
	return h.denyAll(ctx, job, watches, from, err)
}
