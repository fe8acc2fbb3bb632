package handlers

import (
	"context"
	"fmt"
	"maps"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/state"
	"lockstep/internal/volume"
)

// Sync brings a clone up to date: it clones or fetches, publishes the ref's tree, and reports what
// changed since the app was last given this ref. The remote is not asked about what it has answered
// already; see coalesce.go. A change that is older than the clone's removal reports removed.
func (h *Handlers) Sync(ctx context.Context, job events.Job) (events.Outcome, error) {
	change := job.Change
	known, err := h.States.Load(ctx, change.Repo)
	if err != nil {
		return events.Outcome{}, redisFault(err)
	}
	if known.Buried(job.Entry) {
		result := job.Result(events.ResultRemoved)
		result.Ref = events.Ref{} // all of it
		return events.Outcome{Result: result}, nil
	}
	if err := h.checkWatched(ctx, change); err != nil {
		return events.Outcome{}, err
	}
	secret, err := h.Credentials.Resolve(ctx, change.Credential, change.URL)
	if err != nil {
		return events.Outcome{}, fmt.Errorf("sync %s: %w", change.Repo, err)
	}
	latest, err := job.Latest(ctx)
	if err != nil {
		return events.Outcome{}, redisFault(err)
	}
	answer, answered := answeredBy(known, job, latest)
	synced, err := h.Repos.Sync(ctx, volume.SyncRequest{
		Repo: change.Repo, URL: change.URL, Ref: change.Ref, Auth: wire.Auth(secret), Fence: job.Fence, Depth: change.Depth, Foreign: change.Foreign,
		Base: baseFor(known, change.App), Known: volume.Tip{Ref: answer.Ref, Commit: answer.Commit}, Confirm: job.Confirm, Progress: job.Progress,
	})
	if again := h.lookAgain(ctx, job, known, synced, err); again != nil {
		return events.Outcome{}, again
	}
	if err != nil {
		return events.Outcome{}, h.afterRefusal(change.Credential, secret, err)
	}
	fresh := synced.Asked || !answered
	if fresh {
		answer = state.Asked{URL: change.URL, Until: latest, Ref: synced.Ref, Commit: synced.After}
	}
	result := job.Result(events.ResultSynced)
	result.Ref = synced.Ref
	result.Before, result.After = synced.Before, synced.After
	result.Path, result.Tree = synced.Path, synced.Tree
	result.Files, result.Full, result.Truncated = synced.Files, synced.Full, synced.Truncated
	result.Until = answer.Until

	fields := state.SyncedFields(result, change.URL)
	maps.Copy(fields, state.AskedByFields(change, synced.Ref))
	if fresh && latest != "" { // an older answer is written down, or has been replaced
		maps.Copy(fields, state.AskedFields(change.Ref, change.Credential, answer))
	}
	if announces(job, known) {
		maps.Copy(fields, state.NewestFields(change.Ref, change.App, job.Entry))
	}
	drop, err := h.replaced(known, change, synced.Ref)
	if err != nil {
		return events.Outcome{}, err
	}
	return events.Outcome{Result: result, State: fields, Drop: drop, Covers: covering(job, known, answer, result)}, nil
}

// replaced are the fields of refs that were published until another became the default branch.
func (h *Handlers) replaced(known state.Repo, change events.Change, now events.Ref) (drop []string, err error) {
	if !change.Ref.IsZero() || known.Head(now) != "" || len(known.Heads()) == 0 {
		return nil, nil
	}
	published, _, err := h.Repos.Published(change.Repo)
	if err != nil {
		return nil, err
	}
	for name := range known.Heads() {
		if ref, err := events.ParseRef(name); err == nil && published.Commits[ref] == "" {
			drop = append(drop, known.FieldsOf(ref)...)
		}
	}
	return drop, nil
}

// redisFault is an error that Redis is to blame for, not the change.
func redisFault(err error) error {
	return &events.Error{Disposition: events.Contention, Class: events.ClassInternal, Err: err}
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
