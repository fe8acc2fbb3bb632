package handlers

import (
	"context"
	"fmt"
	"maps"
	"time"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/volume"
)

// Coalescing goes by the ids of stream entries, never by clocks. Just before a sync asks the remote,
// it notes the id that the stream of changes last gave out. What the remote says then answers every
// change up to that entry which asks for the same ref of the same remote with the same credential;
// for another credential nothing is proved. The answer holds once its sync is settled, and as long
// as the tree on disk is still that commit.
//
// A change may announce a commit that the answer does not have. Then another push has come since, or
// the remote is behind its own webhook. Only of the newest such change for a ref can the latter be
// true: the remote is asked for it again, with a backoff, a few times. Then what it has is accepted.
// Each app has a newest of its own, since nobody else's result tells it of the commit.

const (
	lookFirst = 200 * time.Millisecond // before the remote is asked again; doubles each time
	lookTimes = 5                      // after 6.2 s in all
)

// answeredBy returns what answers a job already. That cannot come from a stream which is younger than the
// answer: it was lost and begun anew, perhaps by an earlier clock.
func answeredBy(known state.Repo, job events.Job, latest string) (state.Asked, bool) {
	change := job.Change
	answer, ok := known.Asked(change.URL, change.Ref, change.Credential)
	switch {
	case !ok, latest == "", events.EntryAfter(job.Entry, answer.Until), events.EntryAfter(answer.Until, latest):
		return state.Asked{}, false
	case change.Announced() == "", change.After == answer.Commit, events.EntryAfter(known.Newest(change.Ref, change.App), job.Entry):
		return answer, true
	}
	return state.Asked{}, false
}

// announces reports whether a job is the newest known to announce a commit for its ref.
func announces(job events.Job, known state.Repo) bool {
	return job.Change.Announced() != "" && !events.EntryAfter(known.Newest(job.Change.Ref, job.Change.App), job.Entry)
}

// lookAgain returns the error with which a job comes back when the remote may be behind the webhook
// that announced the job's commit, and nil when it is to be taken as it is.
func (h *Handlers) lookAgain(ctx context.Context, job events.Job, known state.Repo, synced volume.SyncResult, syncErr error) error {
	change := job.Change
	switch {
	case !announces(job, known), syncErr == nil && synced.After == change.After:
		return nil
	case syncErr != nil && (events.ClassOf(syncErr) != events.ClassNoRef || known.Spelled() == ""):
		return nil
	}
	newest, err := job.Newest(ctx)
	if err != nil {
		return redisFault(err)
	}
	looks := known.Looks(change.Ref, job.Entry)
	if events.EntryAfter(newest, job.Entry) || looks >= lookTimes {
		return nil
	}
	if err := h.States.SetLooks(ctx, change.Repo, change.Ref, job.Entry, looks+1); err != nil {
		return redisFault(err)
	}
	return &events.Error{
		Disposition: events.Contention, Class: events.ClassBehind, RetryAfter: lookFirst << looks,
		Err: fmt.Errorf("sync %s: the remote does not have %.12s yet, which was announced for %s",
			change.Repo, change.After, refName(change.Ref)),
	}
}

func refName(ref events.Ref) string {
	if ref.IsZero() {
		return "the default branch"
	}
	return ref.String()
}

// covering returns which other jobs a sync's result answers too: those of the same app, who is told
// that nothing has changed since. Other apps are told what has, on their own turn, and the remote is
// not asked for that.
func covering(job events.Job, known state.Repo, answer state.Asked, result events.Result) func(context.Context, events.Job) (events.Outcome, bool) {
	if answer.Until == "" {
		return nil
	}
	newest, looked := known.Newest(job.Change.Ref, job.Change.App), false
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
		if change.Announced() != "" && change.After != answer.Commit && !looked {
			looked = true
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
			return events.Outcome{}, false // perhaps the remote is behind: on its own turn
		}
		if change.Watched != job.Change.Watched { // whose it is decides how long it is kept
			asked := state.AskedByFields(change, result.Ref)
			maps.Copy(asked, fields)
			fields = asked
		}
		covered := other.Result(events.ResultSynced)
		covered.Ref, covered.Before, covered.After = result.Ref, result.After, result.After
		covered.Path, covered.Tree, covered.Until = result.Path, result.Tree, result.Until
		return events.Outcome{Result: covered, State: fields}, true
	}
}
