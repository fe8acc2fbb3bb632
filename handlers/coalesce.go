package handlers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// Coalescing compares IDs of stream entries, never clocks. Right before a sync contacts the remote, it reads
// the ID of the last entry in the stream of changes. The remote's answer then covers every change up to that
// entry for the same ref, remote and credential. The answer is valid once its sync is settled, and while the
// tree on disk is still at its commit.
//
// A change may announce a commit that the answer lacks: either another push has followed, or the remote lags
// behind its own webhook. A lag is possible only for the newest such change of a ref. Then the sync is
// retried a few times with a backoff, and the last answer is accepted. The newest change is tracked per app,
// because an app receives a commit only in its own results.

const (
	behindBackoff    = 200 * time.Millisecond // before the first retry; doubles each time
	maxBehindRetries = 5                      // 6.2 s in total
)

// A commit by its hash never changes: once a credential has fetched it, the remote is not asked again. A
// pinned commit of a named ref says nothing about the ref, so it covers no other change, and a sync covers no
// change that was queued after it.

// answeredBy returns a stored answer that covers the job. It ignores an answer newer than the stream: Redis
// lost its data, and IDs may have restarted from an earlier time.
func answeredBy(known state.Repo, job Job, latest string) (state.RemoteRef, bool) {
	change := job.Change
	answer, ok := known.RemoteRef(change.URL, change.Ref, change.Credential)
	switch {
	case change.Pinned() != "" && change.Pinned() == answer.Commit:
		return answer, true
	case change.Pinned() != "":
		return state.RemoteRef{}, false
	case !ok, latest == "", events.EntryAfter(job.Entry, answer.Until), events.EntryAfter(answer.Until, latest):
		return state.RemoteRef{}, false
	case change.Announced() == "", change.After == answer.Commit,
		events.EntryAfter(known.Newest(change.Ref, change.App), job.Entry):
		return answer, true
	}
	return state.RemoteRef{}, false
}

// announces reports whether the job is the newest known one that announces a commit for its ref.
func announces(job Job, known state.Repo) bool {
	return job.Change.Announced() != "" && !events.EntryAfter(known.Newest(job.Change.Ref, job.Change.App), job.Entry)
}

// checkBehind returns a retryable error if the remote may lag behind the webhook that announced the job's
// commit. commit and syncErr are the result of the sync.
func (h *Handlers) checkBehind(ctx context.Context, job Job, known state.Repo, commit string, syncErr error) error {
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
		Disposition: events.Contention, Scope: events.ScopeNone, Class: events.ClassBusy,
		RetryAfter: behindBackoff << times,
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
		change.Credential == done.Credential && done.Depth.Covers(change.Depth) && change.Submodules == done.Submodules
}

// coverage settles other jobs with the answer of a sync, while its lease is held: a push to a repository with
// n apps adds n changes, which read the watches, the state and the waiting changes once, not n times. Jobs of
// the same app get a result without changes. Those of another app get the result of the sync if the app last
// received the same commit. All others run on their own turn: jobs with another credential, which must be
// proved, and of apps with views or with credentials for submodules.
type coverage struct {
	job        Job
	known      state.Repo // before the sync was settled
	answer     state.RemoteRef
	result     events.Result
	inspection *inspection
	otherApps  bool                       // other apps' jobs may be settled
	stored     func() (storedRefs, error) // after the sync

	watches map[string][]watch.Watch // by app
	newest  map[string]string        // by app: newest known entry that announces a commit of the ref
	read    bool                     // newest has the job's app's waiting entries
	pinned  string                   // the first waiting entry that pins a commit under the ref's name
	covered map[string]appCoverage   // other apps whose jobs were covered
}

// appCoverage says how far the first covered job of an app is.
type appCoverage int

const (
	appUnknown appCoverage = iota
	appCovered             // its outcome was returned, and is perhaps not settled
	appSettled             // the app has received the commit
)

// newCoverage returns the coverage of a sync, whose watches were read after the answer's Until. otherApps
// allows to settle other apps' jobs.
func (h *Handlers) newCoverage(
	job Job, known state.Repo, watches []watch.Watch, answer state.RemoteRef, result events.Result, i *inspection,
	otherApps bool,
) *coverage {
	c := &coverage{
		stored: h.storedOnce(job.Change.Repo), job: job, known: known, answer: answer, result: result, inspection: i,
		otherApps: otherApps,
		watches:   map[string][]watch.Watch{}, newest: map[string]string{}, covered: map[string]appCoverage{},
	}
	for _, w := range watches {
		c.watches[w.App] = append(c.watches[w.App], w)
	}
	if announces(job, known) {
		c.newest[job.Change.App] = job.Entry
	}
	return c
}

// covers returns the outcome of another job, for [Outcome]. It returns false if the job must run on its own turn.
func (c *coverage) covers(ctx context.Context, other Job) (Outcome, bool) {
	change := other.Change
	if pinsName(change) {
		if (change.Ref == c.job.Change.Ref || change.Ref == c.result.Ref) &&
			(c.pinned == "" || events.EntryAfter(c.pinned, other.Entry)) {
			c.pinned = other.Entry
		}
		return Outcome{}, false
	}
	switch {
	case !asksTheSame(change, c.job.Change), c.pinned != "" && events.EntryAfter(other.Entry, c.pinned):
		return Outcome{}, false
	case c.job.Change.Pinned() == "" && events.EntryAfter(other.Entry, c.answer.Until):
		return Outcome{}, false
	}
	isOther := change.App != c.job.Change.App
	if isOther && !c.answersApp(other) {
		return Outcome{}, false
	}
	fields, ok := c.announced(ctx, other)
	if !ok {
		return Outcome{}, false
	}
	other.Follows = c.result.Follows
	covered := other.Result(events.ResultSynced)
	covered.Ref, covered.Before, covered.After = c.result.Ref, c.result.After, c.result.After
	covered.Path, covered.Tree, covered.Until, covered.Verification = c.result.Path, c.result.Tree, c.result.Until,
		c.result.Verification
	covered.Missing, covered.Views = c.result.Missing, noneChanged(c.result.Views)
	outcome := Outcome{State: map[string]string{}}
	if isOther {
		covered.Verification, covered.Views = c.inspection.own(change.App), nil
	}
	if isOther && c.covered[change.App] == appUnknown {
		covered.Before, covered.Files, covered.Full = c.result.Before, c.result.Files, c.result.Full
		covered.Truncated, covered.Forced = c.result.Truncated, c.result.Forced
		c.covered[change.App] = appCovered
		outcome.Settled = func() { c.covered[change.App] = appSettled }
		outcome.State, outcome.Drop = c.known.SyncedFields(covered, change.URL)
	}
	if change.Watched != c.job.Change.Watched { // a ref requested manually is kept longer
		maps.Copy(outcome.State, state.OriginFields(change, c.result.Ref))
	}
	maps.Copy(outcome.State, fields)
	outcome.Result = covered
	return outcome.withoutTroubles(c.known, c.known.TroubleText(), disproved(change, covered)), true
}

// announced returns the fields to set for the commit that a job announces. It returns false if the remote may
// not have the commit yet.
func (c *coverage) announced(ctx context.Context, other Job) (fields map[string]string, ok bool) {
	change := other.Change
	if change.Announced() == "" {
		return nil, true
	}
	newest, known := c.newest[change.App]
	if !known {
		newest = c.known.Newest(change.Ref, change.App)
	}
	hasCommit := change.After == c.answer.Commit
	if !hasCommit && !c.read && change.App == c.job.Change.App {
		c.read = true
		if waiting, err := other.Newest(ctx); err == nil && (newest == "" || events.EntryAfter(waiting, newest)) {
			newest = waiting
		}
	}
	isNewest := !events.EntryAfter(newest, other.Entry)
	if hasCommit && isNewest {
		newest, fields = other.Entry, state.NewestFields(change.Ref, change.App, other.Entry)
	}
	c.newest[change.App] = newest
	return fields, hasCommit || !isNewest
}

// answersApp reports whether the result of the sync is also that of another app's job.
func (c *coverage) answersApp(other Job) bool {
	change, watches := other.Change, c.watches[other.Change.App]
	if !c.otherApps || change.App == "" || c.job.Change.App == "" || change.Foreign != c.job.Change.Foreign {
		return false
	}
	if c.known.RemovedSince(other.Entry) || c.known.Denied(change.App, change.Credential) ||
		checkWatched(change, watches, c.stored) != nil {
		return false
	}
	if views, _ := viewsOf(watches, change.App, c.result.Ref, c.result.IsDefault()); views != nil {
		return false
	}
	if slices.ContainsFunc(watches, func(w watch.Watch) bool { return len(w.SubmoduleCredentials) > 0 }) {
		return false
	}
	switch c.covered[change.App] {
	case appCovered: // the app has the commit only once that is settled
		return false
	case appSettled:
		return true
	}
	return baseFor(c.known, change)(c.result.Ref, "") == baseFor(c.known, c.job.Change)(c.result.Ref, "")
}
