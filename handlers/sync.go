package handlers

import (
	"context"
	"fmt"

	"lockstep/events"
	"lockstep/internal/gitrepo"
	"lockstep/internal/state"
)

// Sync brings a clone up to date: it clones or fetches, publishes the ref's tree, and reports what
// changed since the app was last given this ref. A change that is older than the clone's removal
// reports removed, and fetches nothing.
func (h *Handlers) Sync(ctx context.Context, job events.Job) (events.Outcome, error) {
	change := job.Change
	known, err := h.States.Load(ctx, change.Repo)
	if err != nil { // Redis is at fault, not the change
		return events.Outcome{}, &events.Error{Disposition: events.Contention, Class: events.ClassInternal, Err: err}
	}
	if known.Buried(job.Entry) {
		return events.Outcome{Result: job.Result(events.ResultRemoved)}, nil
	}
	secret, err := h.Credentials.Resolve(change.Credential, change.URL)
	if err != nil {
		return events.Outcome{}, fmt.Errorf("sync %s: %w", change.Repo, err)
	}
	synced, err := h.Repos.Sync(ctx, gitrepo.SyncRequest{
		Repo: change.Repo, URL: change.URL, Ref: change.Ref, Auth: gitrepo.Auth(secret), Fence: job.Fence,
		Base: baseFor(known, change.App), Confirm: job.Confirm,
	})
	if err != nil {
		return events.Outcome{}, err
	}
	result := job.Result(events.ResultSynced)
	result.Ref = synced.Ref
	result.Before, result.After = synced.Before, synced.After
	result.Path, result.Tree = synced.Path, synced.Tree
	result.Files, result.Full, result.Truncated = synced.Files, synced.Full, synced.Truncated
	return events.Outcome{Result: result, State: state.SyncedFields(result, change.URL)}, nil
}

// baseFor says from which commit an app is told the changes: the one it was last given. Nobody in
// particular reads the volume itself, so for the nameless app what is published there counts.
func baseFor(known state.Repo, app string) func(ref events.Ref, published string) string {
	return func(ref events.Ref, published string) string {
		if given := known.Given(app, ref); given != "" || app != "" {
			return given
		}
		return published
	}
}
