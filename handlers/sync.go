package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"lockstep/events"
	"lockstep/internal/ext"
	"lockstep/internal/git/wire"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// Sync clones or fetches, publishes the ref's tree, and reports what changed since the app last received this
// ref. It reuses earlier answers of the remote (see coalesce.go). A change older than the clone's removal is
// reported as removed.
func (h *Handlers) Sync(ctx context.Context, job Job) (Outcome, error) {
	change, latest, known := job.Change, job.Latest, job.Known
	if known.RemovedSince(job.Entry) {
		result := job.Result(events.ResultRemoved)
		result.Ref, result.App = events.Ref{}, "" // the whole repository; its removal has told the apps
		return Outcome{Result: result}, nil
	}
	watches, err := h.watches(ctx, change.Repo)
	if err != nil {
		return Outcome{}, err
	}
	if err := checkWatched(change, watches, h.storedOnce(change.Repo)); err != nil {
		return Outcome{}, err
	}
	if err := h.awaited(ctx, job); err != nil {
		return Outcome{}, err
	}
	answer, answered := answeredBy(known, job, latest)
	if known.IsRefused(change.App, change.Credential) {
		answer, answered = state.RemoteRef{}, false // only the remote can say that it accepts the credential again
	}
	s := syncing{job: job, known: known, watches: watches, admission: h.admission(ext.Sync{
		Known: known, Watches: watches, Change: change, Limiter: job.limiter,
	})}
	if s.request, err = h.syncRequest(ctx, s, answer); err != nil {
		return Outcome{}, fmt.Errorf("sync %s: %w", change.Repo, err)
	}
	synced, err := h.Volume.Sync(ctx, s.request)
	s.chain = chainOf(known, synced.Ref, change.Ref.IsZero() || known.Default() == synced.Ref.String(), job)
	if errors.Is(err, volume.ErrNoCommit) {
		return h.unfit(ctx, s, synced, err)
	}
	if outcome, unseen, err := h.unseen(ctx, job, s.chain, synced, err); unseen {
		return outcome, err
	}
	if refused, ok := s.admission.refusal(job, err); ok {
		s.chain.settles(&refused, job, "")
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
	if synced.Asked {
		maps.Copy(outcome.State, state.AnsweredFields(job.now()))
	}
	remember(&outcome, s)
	forgetReplaced(known, watches, change.App)
	return outcome, nil
}

// syncing is a sync of a job, and what is known before the remote is contacted.
type syncing struct {
	job       Job
	known     state.Repo
	watches   []watch.Watch
	admission *admission
	request   volume.SyncRequest
	chain     *chain // of the ref, once it is known
}

// syncRequest returns the request to the volume. answer is the remote's answer to an earlier change, if that
// covers this one.
func (h *Handlers) syncRequest(ctx context.Context, s syncing, answer state.RemoteRef) (volume.SyncRequest, error) {
	job, change := s.job, s.job.Change
	auth, err := h.resolve(ctx, change.Credential, change.URL)
	if err != nil {
		return volume.SyncRequest{}, err
	}
	base, confirm := h.recordOrigin(job, s.known)
	req := volume.SyncRequest{
		Repo: change.Repo, URL: change.URL, Auth: auth, Foreign: change.Foreign, Limiter: job.limiter(change.Credential),
		AuthFor: func(ctx context.Context, url string) (wire.Auth, error) {
			return h.Credentials.ResolveOther(ctx, change.Credential, url)
		},
		Ref: change.Ref, Pin: change.Pinned(), Depth: s.admission.depth(change.Depth),
		Base: base, Known: volume.Tip{Ref: answer.Ref, Commit: answer.Commit},
		Check: s.admission.checks(),
		Fence: job.Fence, Confirm: confirm, Progress: job.Progress,
	}
	isDefault := change.Ref.IsZero() || change.Ref.String() == s.known.Default()
	return req, s.admission.fill(&req, change.App, cmp.Or(change.Ref, parsedRef(s.known.Default())), isDefault)
}

// recordOrigin returns the base and the confirmation of a sync. The latter records that a watch has requested the ref
// before it is published: nobody would know if the worker died before it settles, and the watch were removed then.
func (h *Handlers) recordOrigin(job Job, known state.Repo) (
	base func(events.Ref, volume.Publication) volume.Base, confirm func(context.Context) error,
) {
	var ref events.Ref
	base = func(resolved events.Ref, published volume.Publication) volume.Base {
		ref = resolved
		return baseFor(known, job.Change)(resolved, published)
	}
	confirm = func(ctx context.Context) error {
		if err := job.Confirm(ctx); err != nil || !job.Change.Watched || known.HasOrigin(ref) {
			return err
		}
		return redisError(h.States.RecordWatched(ctx, job.Change.Repo, job.Fence, ref))
	}
	return base, confirm
}

// syncOutcome returns the results of a sync, the state to store, and the changes to request. answer is the
// remote's answer that it used; without one, no other change is covered.
func (h *Handlers) syncOutcome(
	ctx context.Context, s syncing, synced volume.SyncResult, answer state.RemoteRef,
) (Outcome, error) {
	job, change, known, watches := s.job, s.job.Change, s.known, s.watches
	result := syncedResult(job, synced)
	result.Until = answer.Until
	s.admission.describe(&result)
	more, views, err := h.syncViews(ctx, job, watches, known, &result, s.request, synced.Doubtful)
	if err != nil {
		return Outcome{}, fmt.Errorf("sync %s: %w", change.Repo, err)
	}
	again, drop, poll, err := h.replaced(job, known, watches, result)
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
	fields := known.UncertainFields(synced.Ref, synced.Former.Commit, synced.Former.Tree, synced.Former.Former)
	maps.Copy(fields, known.SyncedFields(result, change.URL))
	maps.Copy(fields, again)
	maps.Copy(fields, state.OriginFields(change, synced.Ref))
	maps.Copy(fields, known.FetchedFields(synced.Ref))
	outcome := Outcome{
		Result: result, State: fields, Drop: drop, Changes: poll, More: more, Views: forgotten,
	}
	if answer.Until != "" {
		replaces := len(drop)+len(poll) > 0
		outcome.Covers = h.newCoverage(s, answer, result, synced.Former, !synced.Doubtful && !replaces).covers
	}
	return outcome, nil
}

// syncedResult returns the result of a sync.
func syncedResult(job Job, synced volume.SyncResult) events.Result {
	result := job.Result(events.ResultSynced)
	result.Ref = synced.Ref
	result.Before, result.After = synced.Before, synced.After
	result.Path = synced.Path
	result.Files, result.Full, result.Truncated = synced.Files, synced.Full, synced.Truncated
	result.Missing, result.Forced = synced.Missing, synced.Forced
	return asDelivered(result, synced.Tree)
}

// syncViews compares the views of a synced result's app, and publishes their trees. If the comparison needs a
// damaged object that the sync did not need, it fetches everything again.
func (h *Handlers) syncViews(
	ctx context.Context, job Job, watches []watch.Watch, known state.Repo, result *events.Result,
	request volume.SyncRequest, doubtful bool,
) (more []events.Result, views map[string]string, err error) {
	more, views, err = h.compareViews(ctx, watches, known, result, doubtful)
	if events.ClassOf(err) == events.ClassCorrupt && ctx.Err() == nil {
		request.Refetch = true
		if _, err := h.Volume.Sync(ctx, request); err != nil {
			return nil, nil, err
		}
		more, views, err = h.compareViews(ctx, watches, known, result, doubtful)
	}
	if err != nil {
		return nil, nil, err
	}
	return more, views, h.publishViews(ctx, job, watches, *result, more)
}

// remember adds the fields of a sync's outcome that depend on earlier ones: announced commits, checks and what is
// missing in the tree.
func remember(outcome *Outcome, s syncing) {
	change, result := s.job.Change, outcome.Result
	if change.Pinned() == "" {
		maps.Copy(outcome.State, s.chain.fields(result.After))
		s.chain.settles(outcome, s.job, result.After)
	}
	checked, unchecked := s.admission.fields(volume.Tip{Ref: result.Ref, Commit: result.After})
	maps.Copy(outcome.State, checked)
	missing, had := s.known.MissingFields(result)
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

// unpublished returns the state fields of refs that are not published, even damaged.
func unpublished(known state.Repo, published volume.Published) (drop []string) {
	for name := range known.Heads() {
		if ref, err := events.ParseRef(name); err == nil && published.Commits[ref] == "" && !published.Damaged[ref] {
			drop = append(drop, known.FieldsOf(ref)...)
		}
	}
	return drop
}
