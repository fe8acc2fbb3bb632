package handlers

import (
	"context"
	"fmt"

	"lockstep/events"
	"lockstep/internal/credential"
	"lockstep/internal/gitrepo"
	"lockstep/internal/state"
)

// Remove deletes a clone that the remote has no more. The change is a hint: unless it is forced, the
// remote is asked, and a repository that is still there is kept. What is remembered of the clone
// makes room for a tombstone, which tells older changes that they are past.
func (h *Handlers) Remove(ctx context.Context, job events.Job) (events.Outcome, error) {
	change := job.Change
	var secret credential.Secret
	if !change.Force {
		var err error
		if secret, err = h.Credentials.Resolve(ctx, change.Credential, change.URL); err != nil {
			return events.Outcome{}, fmt.Errorf("remove %s: %w", change.Repo, err)
		}
	}
	_, err := h.Repos.Remove(ctx, gitrepo.RemoveRequest{
		Repo: change.Repo, URL: change.URL, Auth: gitrepo.Auth(secret), Fence: job.Fence,
		Force: change.Force, Confirm: job.Confirm,
	})
	if err != nil {
		return events.Outcome{}, h.afterRefusal(change.Credential, secret, err)
	}
	result := job.Result(events.ResultRemoved)
	return events.Outcome{Result: result, State: state.RemovedFields(result, job.Entry), Forget: true}, nil
}
