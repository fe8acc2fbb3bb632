package handlers

import (
	"context"
	"fmt"
	"maps"

	"lockstep/events"
	"lockstep/internal/ext"
	"lockstep/internal/state"
	"lockstep/internal/volume"
)

// Remove deletes a clone that the remote no longer has, or unpublishes the change's ref; readers may use its
// tree for the usual grace period. The change is a hint: unless it is forced, Remove keeps anything that the
// remote still has; if it is forced, Remove keeps anything that is still watched. The announced deletion of a ref of a
// watched repository is a poll. A deleted clone leaves a tombstone in its state, which identifies older changes as
// outdated.
func (h *Handlers) Remove(ctx context.Context, job Job) (Outcome, error) {
	change := job.Change
	watches, err := h.watches(ctx, change.Repo)
	if err != nil {
		return Outcome{}, err
	}
	if !change.Force && !change.Ref.IsZero() && len(watches) > 0 {
		job.Change.App = "" // it concerns all
		return h.Poll(ctx, job)
	}
	req := volume.RemoveRequest{
		Repo: change.Repo, Ref: change.Ref, URL: change.URL, Foreign: change.Foreign, Fence: job.Fence, Confirm: job.Confirm,
		Force: change.Force, Plain: change.Force,
	}
	if change.Force {
		err = h.checkUnwatched(change, watches)
	} else {
		req.Limiter = job.limiter(change.Credential)
		req.Auth, err = h.resolve(ctx, change.Credential, change.URL)
	}
	if err != nil {
		return Outcome{}, fmt.Errorf("remove %s: %w", change.Repo, err)
	}
	known := job.Known
	remove := h.Volume.RemoveRef
	if change.Ref.IsZero() {
		remove = h.Volume.Remove
	}
	if _, err := remove(ctx, req); err != nil {
		return Outcome{}, h.afterRefusal(change.Credential, req.Auth, err)
	}
	result := job.Result(events.ResultRemoved)
	result.App = "" // apps have results of their own
	isPlain := known.Default() == change.Ref.String()
	told := removals(job, known, watches, change.Ref, isPlain, isPlain)
	if change.Ref.IsZero() {
		fields := state.RemovedFields(result, job.Entry)
		maps.Copy(fields, known.Moves())
		maps.Copy(fields, known.FromFields())
		maps.Copy(fields, h.admission(ext.Sync{Known: known, Watches: watches}).kept())
		return Outcome{Result: result, State: fields, Forget: true, More: told}, nil
	}
	outcome := Outcome{Result: result, More: told, Drop: known.FieldsOf(change.Ref)}
	outcome.Drop = append(outcome.Drop, h.admission(ext.Sync{Known: known, Watches: watches}).outdated()...)
	if outcome.Views, err = h.droppedViews(ctx, change.Repo, known, outcome.Drop); err != nil {
		return Outcome{}, err
	}
	if !known.IsZero() {
		outcome.State, _ = known.KeepRecords(func(ref events.Ref) bool { return ref != change.Ref })
		maps.Copy(outcome.State, state.FenceFields(result))
		supersedeByRemoval(&outcome, job)
	}
	return outcome, nil
}
