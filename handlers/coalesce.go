package handlers

import (
	"context"
	"fmt"
	"maps"
	"time"

	"lockstep/events"
	"lockstep/internal/state"
)

// Coalescing compares IDs of stream entries, never clocks. Right before a sync asks the remote, it reads the last ID of the
// stream of changes. The remote's answer then covers every change up to that entry for the same ref, remote and credential.
// It is valid once its sync is settled, and as long as the tree on disk is still that commit.
//
// A change may announce a commit that the answer does not have. Either another push has followed, or the remote lags behind
// its own webhook. The latter is possible only for the newest such change of a ref: the remote is asked again a few times,
// with a backoff, and then its answer is accepted. The newest change is tracked per app, since an app learns of a commit
// only from its own results.

const (
	behindBackoff    = 200 * time.Millisecond // before the remote is asked again; doubles each time
	maxBehindRetries = 5                      // 6.2 s in total
)

// answeredBy returns an answer that a job can use. An answer newer than the stream is not used: Redis lost its data, and
// IDs may have started again at an earlier time.
func answeredBy(known state.Repo, job events.Job, latest string) (state.RemoteRef, bool) {
	change := job.Change
	answer, ok := known.RemoteRef(change.URL, change.Ref, change.Credential)
	switch {
	case !ok, latest == "", events.EntryAfter(job.Entry, answer.Until), events.EntryAfter(answer.Until, latest):
		return state.RemoteRef{}, false
	case change.Announced() == "", change.After == answer.Commit, events.EntryAfter(known.Newest(change.Ref, change.App), job.Entry):
		return answer, true
	}
	return state.RemoteRef{}, false
}

// announces reports whether no newer job is known that announces a commit for its ref.
func announces(job events.Job, known state.Repo) bool {
	return job.Change.Announced() != "" && !events.EntryAfter(known.Newest(job.Change.Ref, job.Change.App), job.Entry)
}

// checkBehind returns a retryable error if the remote may lag behind the webhook that announced the job's commit. commit
// and syncErr are the result of the sync.
func (h *Handlers) checkBehind(ctx context.Context, job events.Job, known state.Repo, commit string, syncErr error) error {
	change := job.Change
	switch {
	case !announces(job, known), syncErr == nil && commit == change.After:
		return nil
	case syncErr != nil && (events.ClassOf(syncErr) != events.ClassNoRef || known.Path() == ""):
		return nil
	}
	newest, err := job.Newest(ctx)
	if err != nil {
		return redisError(err)
	}
	times := known.Misses(change.Ref, job.Entry)
	if events.EntryAfter(newest, job.Entry) || times >= maxBehindRetries {
		return nil
	}
	if err := h.States.SetMisses(ctx, change.Repo, change.Ref, job.Entry, times+1); err != nil {
		return redisError(err)
	}
	return &events.Error{
		Disposition: events.Contention, Class: events.ClassBehind, RetryAfter: behindBackoff << times,
		Err: fmt.Errorf("sync %s: the remote does not have commit %.12s yet, announced for %s",
			change.Repo, change.After, refName(change.Ref)),
	}
}

func refName(ref events.Ref) string {
	if ref.IsZero() {
		return "the default branch"
	}
	return ref.String()
}

// covering returns a function that settles other jobs with a sync's answer: those of the same app, with a result without
// changes. Other apps receive their changes on their own turn, for which the remote is not asked.
func covering(job events.Job, known state.Repo, answer state.RemoteRef, result events.Result) func(context.Context, events.Job) (events.Outcome, bool) {
	if answer.Until == "" {
		return nil
	}
	newest, read := known.Newest(job.Change.Ref, job.Change.App), false
	if announces(job, known) {
		newest = job.Entry
	}
	return func(ctx context.Context, other events.Job) (events.Outcome, bool) {
		change := other.Change
		if change.Type != events.ChangePushed || change.URL != job.Change.URL || change.Ref != job.Change.Ref ||
			change.Credential != job.Change.Credential || change.App != job.Change.App || !job.Change.Depth.Covers(change.Depth) ||
			events.EntryAfter(other.Entry, answer.Until) {
			return events.Outcome{}, false
		}
		if change.Announced() != "" && change.After != answer.Commit && !read {
			read = true
			if waiting, err := other.Newest(ctx); err == nil && (newest == "" || events.EntryAfter(waiting, newest)) {
				newest = waiting
			}
		}
		var fields map[string]string
		switch {
		case change.Announced() == "":
		case change.After == answer.Commit && !events.EntryAfter(newest, other.Entry):
			newest = other.Entry
			fields = state.NewestFields(change.Ref, change.App, newest)
		case change.After != answer.Commit && !events.EntryAfter(newest, other.Entry):
			return events.Outcome{}, false // the remote may lag behind
		}
		if change.Watched != job.Change.Watched { // a ref that was asked for by hand is kept longer
			askedBy := state.OriginFields(change, result.Ref)
			maps.Copy(askedBy, fields)
			fields = askedBy
		}
		covered := other.Result(events.ResultSynced)
		covered.Ref, covered.Before, covered.After = result.Ref, result.After, result.After
		covered.Path, covered.Tree, covered.Until = result.Path, result.Tree, result.Until
		return events.Outcome{Result: covered, State: fields}, true
	}
}
