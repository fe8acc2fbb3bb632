package handlers

import (
	"context"
	"maps"

	"lockstep/events"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// Coalescing compares IDs of stream entries, never clocks. Right before a sync contacts the remote, it reads
// the ID of the last entry in the stream of changes. The remote's answer then covers every change up to that
// entry for the same ref, remote and credential. The answer is valid once its sync is settled, and while the
// tree on disk is still at its commit.
//
// A change that announces a commit which the answer lacks is covered if it is superseded: see announced.go.

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
	case change.Announced() == "", chainOf(known, answer.Ref, change.Ref.IsZero(), job).has(answer.Commit, change, job.Entry):
		return answer, true
	}
	return state.RemoteRef{}, false
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
// proved, and of apps with views, or whose options cannot be satisfied.
type coverage struct {
	job       Job
	known     state.Repo // before the sync was settled
	answer    state.RemoteRef
	result    events.Result
	admission *admission
	former    volume.Publication         // what was published before
	otherApps bool                       // other apps' jobs may be settled
	stored    func() (storedRefs, error) // after the sync

	watches map[string][]watch.Watch // by app
	chain   *chain                   // of the ref
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
	s syncing, answer state.RemoteRef, result events.Result, former volume.Publication, otherApps bool,
) *coverage {
	c := &coverage{
		stored: h.storedOnce(s.job.Change.Repo), job: s.job, known: s.known, answer: answer, result: result,
		admission: s.admission, chain: s.chain, former: former, otherApps: otherApps,
		watches: map[string][]watch.Watch{}, covered: map[string]appCoverage{},
	}
	for _, w := range s.watches {
		c.watches[w.App] = append(c.watches[w.App], w)
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
	if change.Announced() != "" && !c.chain.supersedes(ctx, c.answer.Commit, other) { // the remote may not have it yet
		return Outcome{}, false
	}
	covered := other.Result(events.ResultSynced)
	covered.Ref, covered.Before, covered.After = c.result.Ref, c.result.After, c.result.After
	covered.Path, covered.Until = c.result.Path, c.result.Until
	c.admission.describe(&covered)
	covered = asDelivered(covered, c.result.Tree)
	covered.Missing, covered.Views = c.result.Missing, noneChanged(c.result.Views)
	outcome := Outcome{State: map[string]string{}}
	if isOther {
		covered.Views = nil
	}
	if isOther && c.covered[change.App] == appUnknown {
		covered.Before, covered.Files, covered.Full = c.result.Before, c.result.Files, c.result.Full
		covered.Truncated, covered.Forced = c.result.Truncated, c.result.Forced
		c.covered[change.App] = appCovered
		outcome.Settled = func() { c.covered[change.App] = appSettled }
		outcome.State = c.known.SyncedFields(covered, change.URL)
	}
	if isOther || change.Watched != c.job.Change.Watched { // what is requested manually is kept longer, also of an app
		maps.Copy(outcome.State, state.OriginFields(change, c.result.Ref))
	}
	if change.Announced() != "" {
		maps.Copy(outcome.State, c.chain.fields(c.answer.Commit))
		c.chain.settles(&outcome, other, c.answer.Commit)
	}
	outcome.Result = covered
	return outcome.withoutTroubles(c.known, disproved(change, covered)), true
}

// answersApp reports whether the result of the sync is also that of another app's job.
func (c *coverage) answersApp(other Job) bool {
	change, watches := other.Change, c.watches[other.Change.App]
	if !c.otherApps || change.App == "" || c.job.Change.App == "" || change.Foreign != c.job.Change.Foreign {
		return false
	}
	if c.known.RemovedSince(other.Entry) || c.known.IsRefused(change.App, change.Credential) ||
		checkWatched(change, watches, c.stored) != nil {
		return false
	}
	if views, _ := viewsOf(watches, change.App, c.result.Ref, c.result.IsDefault()); views != nil {
		return false
	}
	switch c.covered[change.App] {
	case appCovered: // the app has the commit only once that is settled
		return false
	case appSettled:
		return true
	}
	if baseFor(c.known, change)(c.result.Ref, c.former) != baseFor(c.known, c.job.Change)(c.result.Ref, c.former) {
		return false
	}
	return c.admission.fill(new(volume.SyncRequest), change.App, c.result.Ref, c.result.IsDefault()) == nil
}
