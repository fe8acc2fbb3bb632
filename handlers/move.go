package handlers

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"lockstep/events"
	"lockstep/internal/credential"
	"lockstep/internal/git/wire"
	"lockstep/internal/state"
	"lockstep/internal/volume"
)

// Move takes a clone, its watches and what is remembered of it to another path, under the leases of both.
// The change is a hint: the volume, or without a clone the remotes, have to show that it is the same
// repository. Each of the three steps, disk, registry, state, may be done again: a worker that dies after
// any of them leaves the rest to the next. A clone that has come to the old path since is another repository,
// and keeps its watches; or it is the same one, by its old name, and is removed.
func (h *Handlers) Move(ctx context.Context, job events.Job) (events.Outcome, error) {
	change := job.Change
	secret, err := h.Credentials.Resolve(ctx, change.Credential, change.URL)
	if err != nil {
		return events.Outcome{}, fmt.Errorf("move %s: %w", change.Repo, err)
	}
	if err := h.checkRoom(ctx, change); err != nil {
		return events.Outcome{}, err
	}
	former, err := h.formerSecret(ctx, change)
	if err != nil {
		return events.Outcome{}, fmt.Errorf("move %s: %w", change.Repo, err)
	}
	moved, err := h.Repos.Move(ctx, volume.MoveRequest{
		From: change.Repo, To: change.To, URL: change.URL, Auth: wire.Auth(secret), OldAuth: wire.Auth(former),
		Fence: job.Fence, ToFence: job.FenceTo, Foreign: change.Foreign, Confirm: job.Confirm,
	})
	var since volume.Published // what has come to the old path since the move was first worked on
	hasCome := false
	if err == nil && !change.To.Equal(change.Repo) {
		since, hasCome, err = h.Repos.Published(change.Repo)
	}
	if err == nil && (hasCome || !moved.Moved) {
		err = h.checkSame(ctx, change, secret, since)
	}
	if err != nil {
		return events.Outcome{}, h.afterRefusal(change.Credential, secret, err)
	}
	if _, err := h.Watches.Move(ctx, change.Repo, change.To, change.URL); err != nil {
		if _, refused := errors.AsType[*events.Error](err); refused {
			return events.Outcome{}, err
		}
		return events.Outcome{}, redisFault(err)
	}
	known, err := h.States.Load(ctx, change.Repo)
	if err != nil {
		return events.Outcome{}, redisFault(err)
	}
	there, err := h.States.Load(ctx, change.To)
	if err != nil {
		return events.Outcome{}, redisFault(err)
	}
	result := job.Result(events.ResultMoved)
	result.To, result.Path, result.Tree = change.To, moved.Path, moved.Tree
	if change.To.Equal(change.Repo) {
		fields := state.FenceFields(result)
		fields["url"] = change.URL
		return events.Outcome{Result: result, State: fields}, nil
	}
	outcome := events.Outcome{Result: result, State: state.RemovedFields(result, job.Entry), Forget: true}
	if moved.Path != "" && !known.Synced().IsZero() { // or it was removed there before this was settled
		outcome.StateTo = known.MovedFields(there, change.To, change.URL, job.FenceTo)
	}
	if hasCome {
		rest, err := events.NewChange(events.Change{
			ID: "move/" + job.Entry, Type: events.ChangeRemoved, Source: change.Source, Repo: change.Repo,
			URL: since.Remote, Credential: change.Credential, Foreign: change.Foreign,
			Force: since.Fetched, // else there is nothing to remove, unless something comes by then
		})
		if err != nil {
			return events.Outcome{}, err
		}
		outcome.Changes = []events.Change{rest}
	}
	return outcome, nil
}

// checkRoom refuses, before anything has moved, what the registry would refuse when the clone has.
func (h *Handlers) checkRoom(ctx context.Context, change events.Change) error {
	if change.To.Equal(change.Repo) {
		return nil
	}
	set, err := h.Watches.Of(ctx, change.To)
	if err != nil {
		return redisFault(err)
	}
	for _, w := range set.Watches {
		if events.CanonicalRemote(w.URL) != events.CanonicalRemote(change.URL) {
			return events.Errorf(events.Permanent, events.ClassConflict, "move %s: %s is watched by %s at another remote, %s",
				change.Repo, change.To, w.App, events.CanonicalRemote(w.URL))
		}
	}
	return nil
}

// formerSecret is what the former remote may be asked with: nothing where the credential may not be sent, which
// is for the new one.
func (h *Handlers) formerSecret(ctx context.Context, change events.Change) (credential.Secret, error) {
	published, _, err := h.Repos.Published(change.Repo)
	if err != nil {
		return credential.Secret{}, err
	}
	secret, err := h.Credentials.Resolve(ctx, change.Credential, published.Remote)
	if events.DispositionOf(err) == events.Permanent {
		return credential.Secret{}, nil
	}
	return secret, err
}

// checkSame refuses a move of which the volume cannot tell that it is one: of watches without a clone, or
// after something has come to the old path. Each former remote has to have the same refs as the new one, as when it
// leads there; or it is gone, unless something was fetched from it since.
func (h *Handlers) checkSame(ctx context.Context, change events.Change, secret credential.Secret, since volume.Published) error {
	set, err := h.Watches.Of(ctx, change.Repo)
	if err != nil {
		return redisFault(err)
	}
	former := map[way]bool{} // whether it may be gone
	for _, w := range set.Watches {
		if was, is := events.CanonicalHost(w.URL), events.CanonicalHost(change.URL); was != is { // as the volume has it for a clone
			return events.Errorf(events.Permanent, events.ClassConflict, "move %s: %s and %s are different hosts; watch it there, with lockstep watch add", change.Repo, was, is)
		}
		former[way{w.URL, w.Credential, w.Auto}] = true
	}
	if since.Remote != "" {
		former[way{since.Remote, change.Credential, change.Foreign}] = !since.Fetched
	}
	var befores []wire.Refs
	for w, mayBeGone := range former {
		before, err := h.look(ctx, change.Repo, w)
		if mayBeGone && events.ClassOf(err) == events.ClassNotFound {
			continue
		}
		if err != nil {
			return fmt.Errorf("move %s: %w", change.Repo, err)
		}
		befores = append(befores, before)
	}
	if len(befores) == 0 {
		return nil
	}
	after, err := h.Repos.ListRefs(ctx, volume.ListRefsRequest{Repo: change.To, URL: change.URL, Auth: wire.Auth(secret), Foreign: change.Foreign})
	if err != nil {
		return fmt.Errorf("move %s: %w", change.Repo, err)
	}
	for _, before := range befores {
		if !maps.Equal(before.Commits, after.Commits) {
			// Or somebody has pushed between the two looks: then the next ones agree.
			return events.Errorf(events.Retryable, events.ClassConflict, "move %s: it is still there, and %s is not the same repository", change.Repo, change.To)
		}
	}
	return nil
}
