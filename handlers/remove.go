package handlers

import (
	"context"
	"fmt"

	"lockstep/events"
	"lockstep/internal/credential"
	"lockstep/internal/git/wire"
	"lockstep/internal/state"
	"lockstep/internal/volume"
)

// Remove deletes a clone that the remote has no more, or unpublishes the ref that the change names. The
// change is a hint. Unless it is forced, the remote is asked, and what is still there is kept; if it is
// forced, the registry is asked, and what somebody watches is kept. What is remembered of a clone
// makes room for a tombstone, which tells older changes that they are past.
func (h *Handlers) Remove(ctx context.Context, job events.Job) (events.Outcome, error) {
	change := job.Change
	var secret credential.Secret
	var err error
	if change.Force {
		err = h.checkUnwatched(ctx, change)
	} else {
		secret, err = h.Credentials.Resolve(ctx, change.Credential, change.URL)
	}
	if err != nil {
		return events.Outcome{}, fmt.Errorf("remove %s: %w", change.Repo, err)
	}
	if !change.Ref.IsZero() {
		return h.removeRef(ctx, job, secret)
	}
	_, err = h.Repos.Remove(ctx, volume.RemoveRequest{
		Repo: change.Repo, URL: change.URL, Auth: wire.Auth(secret), Fence: job.Fence,
		Force: change.Force, Foreign: change.Foreign, Confirm: job.Confirm,
	})
	if err != nil {
		return events.Outcome{}, h.afterRefusal(change.Credential, secret, err)
	}
	result := job.Result(events.ResultRemoved)
	return events.Outcome{Result: result, State: state.RemovedFields(result, job.Entry), Forget: true}, nil
}

// removeRef unpublishes a branch or a tag. Readers of its tree keep it for the usual grace.
func (h *Handlers) removeRef(ctx context.Context, job events.Job, secret credential.Secret) (events.Outcome, error) {
	change := job.Change
	known, err := h.States.Load(ctx, change.Repo)
	if err != nil {
		return events.Outcome{}, redisFault(err)
	}
	_, err = h.Repos.RemoveRef(ctx, volume.RemoveRefRequest{
		Repo: change.Repo, URL: change.URL, Ref: change.Ref, Auth: wire.Auth(secret), Fence: job.Fence,
		Force: change.Force, Plain: change.Force, Foreign: change.Foreign, Confirm: job.Confirm,
	})
	if err != nil {
		return events.Outcome{}, h.afterRefusal(change.Credential, secret, err)
	}
	outcome := events.Outcome{Result: job.Result(events.ResultRemoved), Drop: known.FieldsOf(change.Ref)}
	if !known.IsZero() {
		outcome.State = state.FenceFields(outcome.Result)
	}
	return outcome, nil
}
