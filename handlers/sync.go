package handlers

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"lockstep/events"
	"lockstep/internal/state"
)

// Sync clones or fetches, publishes the ref's tree, and reports what changed since the app last received this ref. It
// reuses earlier answers of the remote (see coalesce.go). A change older than the clone's removal is reported as removed.
func (h *Handlers) Sync(ctx context.Context, job events.Job) (events.Outcome, error) {
	change := job.Change
	known, err := h.known(ctx, change.Repo)
	if err != nil {
		return events.Outcome{}, err
	}
	if known.RemovedSince(job.Entry) {
		result := job.Result(events.ResultRemoved)
		result.Ref = events.Ref{} // the whole repository
		return events.Outcome{Result: result}, nil
	}
	watches, err := h.watches(ctx, change.Repo)
	if err != nil {
		return events.Outcome{}, err
	}
	if err := checkWatched(change, watches); err != nil {
		return events.Outcome{}, err
	}
	large, err := h.wantedLFS(change, watches)
	if err != nil {
		return events.Outcome{}, err
	}
	remote, err := h.remote(ctx, job, sourceOf(change))
	if err != nil {
		return events.Outcome{}, fmt.Errorf("sync %s: %w", change.Repo, err)
	}
	latest, err := job.Latest(ctx)
	if err != nil {
		return events.Outcome{}, redisError(err)
	}
	answer, answered := answeredBy(known, job, latest)
	inspection := h.inspect(job, watches, known)
	synced, err := h.Repos.Sync(ctx, SyncRequest{
		Repo: change.Repo, Remote: remote, Ref: change.Ref, Pin: change.Pinned(), Depth: inspection.depth(change.Depth), LFS: large, Fence: job.Fence,
		Announced: announcedByHook(job), Base: baseFor(known, change.App), Known: Tip{Ref: answer.Ref, Commit: answer.Commit}, Confirm: job.Confirm, Progress: job.Progress,
		Check: inspection.checks(),
	})
	if behind := h.checkBehind(ctx, job, known, synced.Commit, err); behind != nil {
		return events.Outcome{}, behind
	}
	if refused, ok := inspection.refusal(err); ok {
		return refused, nil
	}
	if err != nil {
		return events.Outcome{}, h.afterRefusal(change.Credential, remote.Secret, err)
	}
	fresh := synced.Asked || !answered
	switch {
	case pinsName(change):
		fresh, answer = false, state.RemoteRef{} // says nothing about what the ref points to
	case fresh:
		answer = state.RemoteRef{URL: change.URL, Until: latest, Ref: synced.Ref, Commit: synced.Commit}
	}
	result := job.Result(events.ResultSynced)
	result.Ref = synced.Ref
	result.Before, result.After = synced.Before, synced.Commit
	result.Path, result.Tree = synced.Path, synced.Tree
	result.Files, result.Full, result.Truncated = synced.Files, synced.Full, synced.Truncated
	result.Until = answer.Until
	result.Forced, result.Verification = synced.Forced, inspection.own(change.App)

	fields := state.SyncedFields(result, change.URL)
	maps.Copy(fields, state.OriginFields(change, synced.Ref))
	if fresh && latest != "" { // an older answer is stored already, or has been replaced
		maps.Copy(fields, state.RemoteRefFields(change.Ref, change.Credential, answer))
	}
	if announces(job, known) {
		maps.Copy(fields, state.NewestFields(change.Ref, change.App, job.Entry))
	}
	drop, err := h.replaced(known, change, synced.Ref)
	if err != nil {
		return events.Outcome{}, err
	}
	checked, unchecked := inspection.fields(known, synced.Ref)
	maps.Copy(fields, checked)
	drop = append(drop, unchecked...)
	return events.Outcome{Result: result, State: fields, Drop: drop, Covers: covering(job, known, answer, result)}, nil
}

// announcedByHook returns the commit that a verified webhook announces, or "". Only the first attempt may rely on it.
func announcedByHook(job events.Job) string {
	if job.Attempt > 1 || !strings.HasPrefix(job.Change.Source, "/hooks/") {
		return ""
	}
	return job.Change.Announced()
}

func (h *Handlers) known(ctx context.Context, repo events.RepoPath) (state.Repo, error) {
	fields, err := h.States.Fields(ctx, repo)
	if err != nil {
		return state.Repo{}, redisError(err)
	}
	return state.RepoOf(fields), nil
}

// replaced returns the state fields of refs that are no longer published because the default branch has changed.
func (h *Handlers) replaced(known state.Repo, change events.Change, now events.Ref) (drop []string, err error) {
	if !change.Ref.IsZero() || known.Head(now) != "" || len(known.Heads()) == 0 {
		return nil, nil
	}
	published, _, err := h.Repos.Published(change.Repo)
	if err != nil {
		return nil, err
	}
	return unpublished(known, published, nil), nil
}

// unpublished returns the state fields of refs that are neither published, even if damaged, nor wanted.
func unpublished(known state.Repo, published Published, wanted map[events.Ref]bool) (drop []string) {
	for name := range known.Heads() {
		if ref, err := events.ParseRef(name); err == nil && published.Commits[ref] == "" && !published.Damaged[ref] && !wanted[ref] {
			drop = append(drop, known.FieldsOf(ref)...)
		}
	}
	return drop
}

// baseFor returns the commit to report changes from: the last one that the app received. The nameless app reads the volume
// itself, so its base is the published commit.
func baseFor(known state.Repo, app string) func(ref events.Ref, published string) string {
	return func(ref events.Ref, published string) string {
		if given := known.Given(app, ref); given != "" || app != "" {
			return given
		}
		return published
	}
}
