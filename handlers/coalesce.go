package handlers

import (
	"context"
	"fmt"
	"maps"
	"time"

	"lockstep/events"
	"lockstep/internal/state"
)

// Coalescing compares IDs of stream entries, never clocks. Right before a sync contacts the remote, it reads the ID of the
// last entry in the stream of changes. The remote's answer then covers every change up to that entry for the same ref, remote
// and credential. The answer is valid once its sync is settled, and while the tree on disk is still at its commit.
//
// A change may announce a commit that the answer lacks: either another push has followed, or the remote lags behind its own
// webhook. A lag is possible only for the newest such change of a ref. Then the sync is retried a few times with a backoff,
// and the last answer is accepted. The newest change is tracked per app, because an app receives a commit only in its own
// results.

const (
	behindBackoff    = 200 * time.Millisecond // before the first retry; doubles each time
	maxBehindRetries = 5                      // 6.2 s in total
)

// A commit by its hash never changes: once a credential has fetched it, the remote is not asked again. A pinned commit of a
// named ref says nothing about the ref, so it covers no other change, and a sync covers no change that was queued after it.

// answeredBy returns a stored answer that covers the job. It ignores an answer newer than the stream: Redis lost its data,
// and IDs may have restarted from an earlier time.
func answeredBy(known state.Repo, job events.Job, latest string) (state.RemoteRef, bool) {
	change := job.Change
	answer, ok := known.RemoteRef(change.URL, change.Ref, change.Credential)
	switch {
	case change.Pinned() != "" && change.Pinned() == answer.Commit:
		return answer, true
	case change.Pinned() != "":
		return state.RemoteRef{}, false
	case !ok, latest == "", events.EntryAfter(job.Entry, answer.Until), events.EntryAfter(answer.Until, latest):
		return state.RemoteRef{}, false
	case change.Announced() == "", change.After == answer.Commit, events.EntryAfter(known.Newest(change.Ref, change.App), job.Entry):
		return answer, true
	}
	return state.RemoteRef{}, false
}

// announces reports whether the job is the newest known one that announces a commit for its ref.
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

// pinsName reports whether a change pins a commit under another ref's name.
func pinsName(change events.Change) bool { return change.Pinned() != "" && change.Ref.Commit() == "" }

// asksTheSame reports whether a sync of done also does what change asks for, if it is recent enough.
func asksTheSame(change, done events.Change) bool {
	return change.Type == events.ChangePushed && change.URL == done.URL && change.Ref == done.Ref &&
		change.Credential == done.Credential && change.App == done.App && done.Depth.Covers(change.Depth) && change.Submodules == done.Submodules
}

// covering returns a function that settles other jobs of the same app with a sync's answer, as results without changes. Jobs
// of other apps run on their own turn, without contacting the remote.
func covering(job events.Job, known state.Repo, answer state.RemoteRef, result events.Result) func(context.Context, events.Job) (events.Outcome, bool) {
	if answer.Until == "" {
		return nil
	}
	newest, read := known.Newest(job.Change.Ref, job.Change.App), false
	pinned := "" // the first waiting entry that pins a commit under the ref's name
	if announces(job, known) {
		newest = job.Entry
	}
	return func(ctx context.Context, other events.Job) (events.Outcome, bool) {
		change := other.Change
		if pinsName(change) {
			if (change.Ref == job.Change.Ref || change.Ref == result.Ref) && (pinned == "" || events.EntryAfter(pinned, other.Entry)) {
				pinned = other.Entry
			}
			return events.Outcome{}, false
		}
		switch {
		case !asksTheSame(change, job.Change), pinned != "" && events.EntryAfter(other.Entry, pinned):
			return events.Outcome{}, false
		case job.Change.Pinned() == "" && events.EntryAfter(other.Entry, answer.Until):
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
		if change.Watched != job.Change.Watched { // a ref requested manually is kept longer
			askedBy := state.OriginFields(change, result.Ref)
			maps.Copy(askedBy, fields)
			fields = askedBy
		}
		other.Follows = result.Follows
		covered := other.Result(events.ResultSynced)
		covered.Ref, covered.Before, covered.After = result.Ref, result.After, result.After
		covered.Path, covered.Tree, covered.Until, covered.Verification = result.Path, result.Tree, result.Until, result.Verification
		covered.Missing, covered.Views = result.Missing, noneChanged(result.Views)
		return events.Outcome{Result: covered, State: fields}, true
	}
}
