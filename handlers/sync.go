package handlers

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// Sync clones or fetches, publishes the ref's tree, and reports what changed since the app last received this
// ref. It reuses earlier answers of the remote (see coalesce.go). A change older than the clone's removal is
// reported as removed.
func (h *Handlers) Sync(ctx context.Context, job Job) (Outcome, error) {
	change := job.Change
	// before the watches are read, so that they include those that a covered change was requested for
	latest, err := job.Latest(ctx)
	if err != nil {
		return Outcome{}, redisError(err)
	}
	known := job.Known
	job.Follows = known.Follows()
	if known.RemovedSince(job.Entry) {
		result := job.Result(events.ResultRemoved)
		result.Ref = events.Ref{} // the whole repository
		return Outcome{Result: result}, nil
	}
	watches, err := h.watches(ctx, change.Repo)
	if err != nil {
		return Outcome{}, err
	}
	if err := checkWatched(change, watches, h.storedOnce(change.Repo)); err != nil {
		return Outcome{}, err
	}
	answer, answered := answeredBy(known, job, latest)
	denied := known.Denied(change.App, change.Credential)
	if denied {
		answer, answered = state.RemoteRef{}, false // only the remote can say that it accepts the credential again
	}
	s := syncing{job: job, known: known, watches: watches, inspection: h.inspect(job, watches, known)}
	if s.request, err = h.syncRequest(ctx, s, answer); err != nil {
		return Outcome{}, fmt.Errorf("sync %s: %w", change.Repo, err)
	}
	synced, err := h.Volume.Sync(ctx, s.request)
	if behind := h.checkBehind(ctx, job, known, synced.After, err); behind != nil {
		return Outcome{}, behind
	}
	if refused, ok := s.inspection.refusal(err); ok {
		return refused, nil
	}
	if err != nil {
		return Outcome{}, h.afterRefusal(change.Credential, s.request.Auth, err)
	}
	fresh := synced.Asked || !answered
	switch {
	case pinsName(change):
		fresh, answer = false, state.RemoteRef{} // unknown what the ref points to now
	case fresh:
		answer = state.RemoteRef{URL: change.URL, Until: latest, Ref: synced.Ref, Commit: synced.After}
	}
	outcome, err := h.syncOutcome(ctx, s, synced, answer)
	if err != nil {
		return Outcome{}, err
	}
	if fresh && latest != "" { // an older answer is stored already, or has been replaced
		maps.Copy(outcome.State, state.RemoteRefFields(change.Ref, change.Credential, answer))
	}
	remember(&outcome, job, known, s.inspection)
	forgetReplaced(known, watches, change.App)
	return outcome, nil
}

// syncing is a sync of a job, and what is known before the remote is contacted.
type syncing struct {
	job        Job
	known      state.Repo
	watches    []watch.Watch
	inspection *inspection
	request    volume.SyncRequest
}

// syncRequest returns the request to the volume. answer is the remote's answer to an earlier change, if that
// covers this one.
func (h *Handlers) syncRequest(ctx context.Context, s syncing, answer state.RemoteRef) (volume.SyncRequest, error) {
	job, change := s.job, s.job.Change
	wanted, err := h.wanted(change, s.known, s.watches)
	if err != nil {
		return volume.SyncRequest{}, err
	}
	from := sourceOf(change)
	auth, err := h.Credentials.Resolve(ctx, from.credential, from.url)
	if err != nil {
		return volume.SyncRequest{}, err
	}
	return volume.SyncRequest{
		Repo: change.Repo, URL: from.url, Auth: auth, AuthFor: h.authFor(from), Foreign: from.foreign,
		Limiter: job.limiter(change.Credential),
		Ref:     change.Ref, Pin: change.Pinned(), Depth: s.inspection.depth(change.Depth), LFS: wanted.lfs,
		Submodules: wanted.submodules, Submodule: h.submoduleRemote(job, from, wanted.scopes),
		Base: baseFor(s.known, change), Known: volume.Tip{Ref: answer.Ref, Commit: answer.Commit},
		Check: s.inspection.checks(),
		Fence: job.Fence, Confirm: job.Confirm, Progress: job.Progress,
	}, nil
}

// syncOutcome returns the results of a sync, the state to store, and the changes to request. answer is the
// remote's answer that it used; without one, no other change is covered.
func (h *Handlers) syncOutcome(
	ctx context.Context, s syncing, synced volume.SyncResult, answer state.RemoteRef,
) (Outcome, error) {
	job, change, known, watches := s.job, s.job.Change, s.known, s.watches
	result := syncedResult(job, synced)
	result.Until, result.Verification = answer.Until, s.inspection.own(change.App)
	more, views, err := h.syncViews(ctx, job, watches, known, &result, s.request, synced.Damaged)
	if err != nil {
		return Outcome{}, fmt.Errorf("sync %s: %w", change.Repo, err)
	}
	drop, poll, err := h.replaced(job, known, watches, result)
	if err != nil {
		return Outcome{}, err
	}
	if len(poll) == 0 && change.Watched && !isOfPoll(change) {
		if poll, err = h.pollIfExceeded(job, known, watches, result); err != nil {
			return Outcome{}, err
		}
	}
	forgotten, err := h.droppedViews(ctx, change.Repo, known, drop)
	if err != nil {
		return Outcome{}, err
	}
	maps.Copy(forgotten, views)
	fields, had := known.SyncedFields(result, change.URL)
	maps.Copy(fields, state.OriginFields(change, synced.Ref))
	outcome := Outcome{
		Result: result, State: fields, Drop: slices.Concat(drop, had), Changes: poll, More: more, Views: forgotten,
	}
	if answer.Until != "" {
		replaces := len(drop)+len(poll) > 0
		outcome.Covers = h.newCoverage(job, known, watches, answer, result, s.inspection, !synced.Damaged && !replaces).covers
	}
	return outcome, nil
}

// syncedResult returns the result of a sync.
func syncedResult(job Job, synced volume.SyncResult) events.Result {
	result := job.Result(events.ResultSynced)
	result.Ref = synced.Ref
	result.Before, result.After = synced.Before, synced.After
	result.Path, result.Tree = synced.Path, synced.Tree
	result.Files, result.Full, result.Truncated = synced.Files, synced.Full, synced.Truncated
	result.Missing, result.Forced = missingOf(synced.Missing), synced.Forced
	return result
}

// syncViews compares the views of a synced result's app, and publishes their trees. If the comparison needs a
// damaged object that the sync did not need, it fetches everything again.
func (h *Handlers) syncViews(
	ctx context.Context, job Job, watches []watch.Watch, known state.Repo, result *events.Result,
	request volume.SyncRequest, damaged bool,
) (more []events.Result, views map[string]string, err error) {
	more, views, err = h.compareViews(ctx, watches, known, result, damaged)
	if events.ClassOf(err) == events.ClassCorrupt && ctx.Err() == nil {
		request.Refetch = true
		if _, err := h.Volume.Sync(ctx, request); err != nil {
			return nil, nil, err
		}
		more, views, err = h.compareViews(ctx, watches, known, result, damaged)
	}
	if err != nil {
		return nil, nil, err
	}
	return more, views, h.publishViews(ctx, job, watches, *result, more)
}

// remember adds the fields of a sync's outcome that depend on earlier ones: the newest change, checks and
// missing submodules.
func remember(outcome *Outcome, job Job, known state.Repo, inspection *inspection) {
	change, ref := job.Change, outcome.Result.Ref
	if announces(job, known) {
		maps.Copy(outcome.State, state.NewestFields(change.Ref, change.App, job.Entry))
	}
	checked, unchecked := inspection.fields(known, ref)
	maps.Copy(outcome.State, checked)
	missing, had := known.MissingFields(outcome.Result)
	maps.Copy(outcome.State, missing)
	outcome.Drop = slices.Concat(outcome.Drop, unchecked, had)
}

// known returns the state of a repository. It returns an error of the class [events.ClassBusy] if the
// repository is not in this cell.
func (h *Handlers) known(ctx context.Context, repo events.RepoPath) (state.Repo, error) {
	known, err := h.States.Load(ctx, repo)
	if err != nil {
		return state.Repo{}, redisError(err)
	}
	return known, known.CheckHere(repo)
}

// unpublished returns the state fields of refs that are neither published, even if damaged, nor wanted.
func unpublished(known state.Repo, published volume.Published, wanted map[events.Ref]bool) (drop []string) {
	for name := range known.Heads() {
		if ref, err := events.ParseRef(name); err == nil && published.Commits[ref] == "" && !published.Damaged[ref] &&
			!wanted[ref] {
			drop = append(drop, known.FieldsOf(ref)...)
		}
	}
	return drop
}
