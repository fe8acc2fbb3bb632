package handlers

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/state"
	"lockstep/internal/volume"
)

// Move moves a clone, its watches and its state to another path, under the leases on both paths. The change
// is a hint: the volume, or the remotes if there is no clone, must confirm that both are the same repository.
// Each of the three steps (disk, registry, state) is idempotent, so the next attempt completes a move whose
// worker died. A clone found at the old path by then is either another repository, which keeps its watches,
// or the same one under its old name, which is removed. The state of the old path records a settled move. If
// the same move is requested again and the old path is in use by then, nothing is done: the result is that of
// a poll, since consumers could take a second ResultMoved to be about the new repository.
func (h *Handlers) Move(ctx context.Context, job Job) (Outcome, error) {
	change := job.Change
	auth, err := h.Credentials.Resolve(ctx, change.Credential, change.URL)
	if err != nil {
		return Outcome{}, fmt.Errorf("move %s: %w", change.Repo, err)
	}
	if _, err := h.known(ctx, change.To); err != nil { // it may be in another cell
		return Outcome{}, err
	}
	if done, err := h.movedBefore(ctx, job); done || err != nil {
		return Outcome{Result: job.Result(events.ResultPolled)}, err
	}
	if err := h.checkTarget(ctx, change); err != nil {
		return Outcome{}, err
	}
	former, err := h.formerAuth(ctx, change)
	if err != nil {
		return Outcome{}, fmt.Errorf("move %s: %w", change.Repo, err)
	}
	moved, err := h.Volume.Move(ctx, volume.MoveRequest{
		From: change.Repo, To: change.To, URL: change.URL, Auth: auth, OldAuth: former, Foreign: change.Foreign,
		Fence: job.Fence, ToFence: job.FenceTo, Confirm: job.Confirm, Limiter: job.limiter(change.Credential),
	})
	if err != nil {
		return Outcome{}, h.afterRefusal(change.Credential, auth, err)
	}
	var successor volume.Published // published at the old path since an earlier attempt at this move
	succeeded := false
	if !change.To.Equal(change.Repo) {
		if successor, succeeded, err = h.Volume.Published(change.Repo); err != nil {
			return Outcome{}, err
		}
	}
	if succeeded || !moved.Moved {
		if err := h.checkSame(ctx, job, successor); err != nil {
			return Outcome{}, err
		}
	}
	if _, err := h.Watches.Move(ctx, change.Repo, change.To, change.URL); err != nil {
		if _, refused := errors.AsType[*events.Error](err); refused {
			return Outcome{}, err
		}
		return Outcome{}, redisError(err)
	}
	outcome, err := h.movedOutcome(ctx, job, moved)
	if err != nil || !succeeded {
		return outcome, err
	}
	rest, err := removalOf(successor, job)
	if err != nil {
		return Outcome{}, err
	}
	outcome.Changes = []events.Change{rest}
	return outcome, nil
}

// movedOutcome returns the outcome of a move whose clone and watches are at the new path.
func (h *Handlers) movedOutcome(ctx context.Context, job Job, moved volume.MoveResult) (Outcome, error) {
	change := job.Change
	known := job.Known
	there, err := h.known(ctx, change.To)
	if err != nil {
		return Outcome{}, err
	}
	job.Follows = known.Follows()
	result := job.Result(events.ResultMoved)
	result.To, result.Path, result.Tree = change.To, moved.Path, moved.Tree
	if change.To.Equal(change.Repo) {
		fields := state.FenceFields(result)
		fields["url"] = change.URL
		return Outcome{Result: result, State: fields}, nil
	}
	outcome := Outcome{
		Result: result, State: state.RemovedFields(result, job.Entry), Forget: true,
		StateTo: there.MovedHereFields(change.Repo),
	}
	maps.Copy(outcome.State, known.MovesAfter(change.To, change.URL, job.Entry))
	maps.Copy(outcome.State, known.FollowsFields())
	if moved.Path != "" && !known.Synced().IsZero() { // otherwise it was removed there before this change was settled
		fields := known.MovedFields(there, change.To, change.URL, job.FenceTo)
		maps.Copy(fields, outcome.StateTo)
		outcome.StateTo = fields
		if outcome.ViewsTo, err = h.movedViews(ctx, change.Repo, change.To); err != nil {
			return Outcome{}, err
		}
	}
	return outcome, nil
}

// removalOf returns the change that removes what was published at the old path since an earlier attempt at a move.
func removalOf(successor volume.Published, job Job) (events.Change, error) {
	change := job.Change
	return events.NewChange(events.Change{
		ID: "move/" + job.Entry, Type: events.ChangeRemoved, Source: change.Source, Repo: change.Repo,
		URL: successor.Remote, Credential: change.Credential, Foreign: change.Foreign,
		// without a fetch, a clone can only be that of a later sync, so the removal checks the remote
		Force: successor.Fetched,
	})
}

// movedBefore reports whether a move that was settled before is requested again, as by a redelivered webhook,
// and another repository, which must keep its watches, has taken the old path since. It does not if the moved
// repository has left the new path: then another one may have taken the same way.
func (h *Handlers) movedBefore(ctx context.Context, job Job) (bool, error) {
	change, known := job.Change, job.Known
	if change.To.Equal(change.Repo) {
		return false, nil
	}
	if !known.MovedTo(change.To, change.URL) {
		return false, nil
	}
	there, err := h.known(ctx, change.To)
	if err != nil {
		return false, err
	}
	atTarget, err := h.watches(ctx, change.To)
	if err != nil {
		return false, err
	}
	if len(atTarget) == 0 && there.Synced().IsZero() {
		return false, nil
	}
	atSource, err := h.watches(ctx, change.Repo)
	if err != nil {
		return false, err
	}
	return len(atSource) > 0 || !known.Synced().IsZero(), nil
}

// checkTarget refuses a move to a path that is watched at another remote, before anything has moved.
func (h *Handlers) checkTarget(ctx context.Context, change events.Change) error {
	if change.To.Equal(change.Repo) {
		return nil
	}
	watches, err := h.watches(ctx, change.To)
	if err != nil {
		return err
	}
	for _, w := range watches {
		if events.CanonicalRemote(w.URL) != events.CanonicalRemote(change.URL) {
			return events.Errorf(events.Permanent, events.ClassConflict, "move %s: %s is watched by %s at another remote, %s",
				change.Repo, change.To, w.App, events.CanonicalRemote(w.URL))
		}
	}
	return nil
}

// formerAuth returns the credential for the former remote: anonymous unless the new remote's credential may
// be sent there.
func (h *Handlers) formerAuth(ctx context.Context, change events.Change) (wire.Auth, error) {
	published, _, err := h.Volume.Published(change.Repo)
	if err != nil {
		return wire.Auth{}, err
	}
	auth, err := h.Credentials.Resolve(ctx, change.Credential, published.Remote)
	if events.DispositionOf(err) == events.Permanent {
		return wire.Auth{}, nil
	}
	return auth, err
}

// checkSame refuses a move unless the remotes confirm it. It is called when the volume cannot: there are
// watches but no clone, or something has been synced at the old path since. Each former remote must list the
// same refs as the new one, for example because it redirects there, or be gone, unless something was fetched
// from it since.
func (h *Handlers) checkSame(ctx context.Context, job Job, successor volume.Published) error {
	change := job.Change
	watches, err := h.watches(ctx, change.Repo)
	if err != nil {
		return err
	}
	mayBeGone := map[source]bool{} // by former remote
	for _, w := range watches {
		was, is := events.CanonicalHost(w.URL), events.CanonicalHost(change.URL)
		if was != is { // the volume has the same rule for clones
			return events.Errorf(events.Permanent, events.ClassConflict,
				"move %s: %s and %s are different hosts; watch the new one, with lockstep watch add", change.Repo, was, is)
		}
		mayBeGone[watched(w)] = true
	}
	if successor.Remote != "" {
		mayBeGone[source{successor.Remote, change.Credential, change.Foreign}] = !successor.Fetched
	}
	var befores []volume.Refs
	for former, gone := range mayBeGone {
		before, err := h.listRefs(ctx, job, change.Repo, former)
		if gone && events.ClassOf(err) == events.ClassNotFound {
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
	after, err := h.listRefs(ctx, job, change.To, sourceOf(change))
	if err != nil {
		return fmt.Errorf("move %s: %w", change.Repo, err)
	}
	for _, before := range befores {
		if !maps.Equal(before.Commits, after.Commits) {
			// A push may have arrived between the two listings; then the next attempt finds them equal.
			return events.Errorf(events.Retryable, events.ClassConflict,
				"move %s: it still exists, and %s is another repository", change.Repo, change.To)
		}
	}
	return nil
}
