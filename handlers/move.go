package handlers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// Move moves a clone, its watches and its state to another path, under the leases on both paths. The change
// is a hint: the remotes must confirm that both are the same repository.
// The new path is complete, and has the watches, before the volume frees the old one; a move whose worker died
// is completed by the next attempt. Moving the watches requests a poll of the new path, which is then synced like
// any other. The state of the old path records a settled move. If the same move is requested again and the old
// path is in use by then, nothing is done: the result is that of a poll, since consumers could take a second
// ResultMoved to be about the new repository.
func (h *Handlers) Move(ctx context.Context, job Job) (Outcome, error) {
	change := job.Change
	auth, err := h.resolve(ctx, change.Credential, change.URL)
	if err != nil {
		return Outcome{}, fmt.Errorf("move %s: %w", change.Repo, err)
	}
	there, err := h.known(ctx, change.To) // it may be in another cell
	if err != nil {
		return Outcome{}, err
	}
	if done, err := h.movedBefore(ctx, job, there); done || err != nil {
		return Outcome{Result: job.Result(events.ResultPolled)}, err
	}
	if err := h.checkTarget(ctx, change); err != nil {
		return Outcome{}, err
	}
	former, err := h.formers(ctx, job)
	if err != nil {
		return Outcome{}, fmt.Errorf("move %s: %w", change.Repo, err)
	}
	err = h.Volume.Move(ctx, volume.MoveRequest{
		From: change.Repo, To: change.To, Former: former, Fence: job.Fence, ToFence: job.FenceTo,
		ToSynced: !there.Synced().IsZero(),
		Remote: volume.Remote{
			URL: change.URL, Auth: auth, Foreign: change.Foreign, Limiter: job.limiter(change.Credential),
		},
		Bring:   func(ctx context.Context) error { return h.moveWatches(ctx, change, former) },
		Confirm: job.Confirm,
	})
	if err != nil {
		return Outcome{}, h.afterRefusal(change.Credential, auth, err)
	}
	return h.movedOutcome(ctx, job, there)
}

// moveWatches moves the watches of a repository, unless they are of another one, at another remote than the former
// ones.
func (h *Handlers) moveWatches(ctx context.Context, change events.Change, former []volume.Remote) error {
	watches, err := h.watches(ctx, change.Repo)
	if err != nil {
		return err
	}
	for _, w := range watches {
		isSame := func(at volume.Remote) bool { return watch.SameRemote(at.URL, w.URL) }
		if !isSame(volume.Remote{URL: change.URL}) && !slices.ContainsFunc(former, isSame) {
			return nil
		}
	}
	_, err = h.Watches.Move(ctx, change.Repo, change.To, change.URL)
	if _, refused := errors.AsType[*events.Error](err); refused {
		return err
	}
	return redisError(err)
}

// movedOutcome returns the outcome of a move whose clone and watches are at the new path, which has the state there.
func (h *Handlers) movedOutcome(ctx context.Context, job Job, there state.Repo) (Outcome, error) {
	change, known := job.Change, job.Known
	plain, _, err := h.Volume.Locate(change.To, events.Ref{})
	if err != nil {
		return Outcome{}, err
	}
	result := job.Result(events.ResultMoved)
	result.To, result.Path, result.Tree = change.To, plain.Name, plain.Tree
	if change.To.Equal(change.Repo) {
		fields := state.FenceFields(result)
		fields["url"] = change.URL
		return Outcome{Result: result, State: fields}, nil
	}
	from, another, err := h.Volume.Published(change.Repo)
	if err != nil {
		return Outcome{}, err
	}
	moves := known.MovesAfter(change.To, change.URL, job.Entry)
	fieldsTo := known.KeptFields(there, change.To)
	if another && from.Fetched { // it has come since an earlier attempt, and the state of the old path is its own by now
		maps.Copy(moves, state.FenceFields(result))
		maps.Copy(fieldsTo, there.MovedHereFields(change.Repo))
		return Outcome{Result: result, State: moves, StateTo: fieldsTo}, nil
	}
	outcome := Outcome{
		Result: result, State: state.RemovedFields(result, job.Entry), Forget: true, StateTo: fieldsTo,
	}
	maps.Copy(outcome.State, moves)
	maps.Copy(outcome.State, known.FromFields())
	published, here, err := h.Volume.Published(change.To)
	if err != nil {
		return Outcome{}, err
	}
	if here && !known.Synced().IsZero() { // otherwise it was removed there before this change was settled
		outcome.StateTo = known.MovedFields(there, change.To, change.URL, job.FenceTo)
		state.Republish(outcome.StateTo, published.Commits, published.Trees)
		if outcome.ViewsTo, err = h.movedViews(ctx, change.Repo, change.To); err != nil {
			return Outcome{}, err
		}
	}
	maps.Copy(outcome.StateTo, there.MovedHereFields(change.Repo))
	return outcome, nil
}

// movedBefore reports whether a move that was settled before is requested again, as by a redelivered webhook,
// and another repository, which must keep its watches, has taken the old path since. It does not if the moved
// repository has left the new path: then another one may have taken the same way.
func (h *Handlers) movedBefore(ctx context.Context, job Job, there state.Repo) (bool, error) {
	change, known := job.Change, job.Known
	if change.To.Equal(change.Repo) || !known.MovedTo(change.To, change.URL) {
		return false, nil
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

// formers returns the remotes that the volume compares with the new one: those of the watches. With a clone, they are
// that of the clone, by the credential of the change and by those of the watches: one that lacks access proves nothing.
func (h *Handlers) formers(ctx context.Context, job Job) (formers []volume.Remote, err error) {
	change, sources := job.Change, map[source]bool{}
	published, cloned, err := h.Volume.Published(change.Repo)
	if err != nil {
		return nil, err
	}
	if cloned {
		sources[source{published.Remote, change.Credential, change.Foreign}] = true
	}
	watches, err := h.watches(ctx, change.Repo)
	if err != nil {
		return nil, err
	}
	for _, w := range watches {
		if !cloned || strings.EqualFold(events.CanonicalRemote(w.URL), events.CanonicalRemote(published.Remote)) {
			sources[watched(w)] = true
		}
	}
	for at := range sources {
		auth, err := h.resolve(ctx, at.credential, at.url)
		if err != nil && events.DispositionOf(err) != events.Permanent {
			return nil, err
		}
		formers = append(formers, volume.Remote{
			URL: at.url, Auth: auth, Foreign: at.foreign, Limiter: job.limiter(at.credential), Unseen: err != nil,
		})
	}
	return formers, nil
}
