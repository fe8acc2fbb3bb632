package handlers

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/state"
	"lockstep/internal/watch"
	"lockstep/router"
)

// Backoff decides when a change is tried again after a failure, and which other changes wait as long: those that
// need what has failed. An error's scope says what that is. Its last error, failures in a row and next attempt are
// in the repository's state.
//
//	the repository         all its changes wait, at no cost of an attempt. From five failures in a row, they
//	                       wait for Open, doubled with each further failure: this is the circuit breaker. The
//	                       next change is the probe. A poll with on_busy=skip is skipped meanwhile
//	an app's credential    its syncs with that credential wait, at no cost of an attempt while a refusal is not
//	                       confirmed: see [state.Repo.Refuse]
//	the change             it waits alone, and so after failures of this deployment
//	a host                 waits are those of the limits of requests to hosts
//
// A permanent failure gives up the change, and nothing else waits for it, unless it is the repository's. A confirmed
// refusal is recorded first, or else the change tried again. A success ends the troubles that it disproves, in the
// step that settles the change. A forced removal does not contact the remote, so it never waits.
type Backoff struct {
	Store *state.Store
	Retry router.Retry  // as for [Changes.Dispose]
	Open  time.Duration // default 30 s
	Log   *slog.Logger  // default slog.Default
	// Observe is called when a circuit opens or closes, and for each probe. Optional.
	Observe func(to state.CircuitPhase)
}

const (
	recordTimeout = 2 * time.Second
	maxOpen       = 10 * time.Minute
)

// Wrap returns next behind the backoff. next runs under the repository's lease, with its state.
func (b Backoff) Wrap(next Handler) Handler {
	b.Open, b.Log = cmp.Or(b.Open, 30*time.Second), cmp.Or(b.Log, slog.Default())
	if b.Observe == nil {
		b.Observe = func(state.CircuitPhase) {}
	}
	return func(ctx context.Context, job Job) (Outcome, error) {
		if err := b.wait(ctx, job); err != nil {
			return Outcome{}, err
		}
		known, err := b.Store.Load(ctx, job.Change.Repo)
		if err != nil {
			return Outcome{}, redisError(err)
		}
		job.Known = known
		if !isForcedRemoval(job.Change) && known.CircuitAt(job.now()).Phase() == state.CircuitHalfOpen {
			b.Observe(state.CircuitHalfOpen)
		}
		outcome, err := next(ctx, job)
		if err != nil {
			return Outcome{}, b.failed(ctx, job, err)
		}
		return b.worked(ctx, job, outcome), nil
	}
}

// wait returns the error of a job that must wait. It does not load the whole state, which may be large.
func (b Backoff) wait(ctx context.Context, job Job) error {
	known, err := b.Store.LoadTroubles(ctx, job.Change.Repo)
	if err != nil {
		return redisError(err)
	}
	if err := known.CheckHere(job.Change.Repo); err != nil {
		return err
	}
	if t, waits := known.Waits(job.Change, job.now()); waits && !isForcedRemoval(job.Change) {
		return waiting(job, t)
	}
	return nil
}

// Poisoned records that a change becomes a dead letter because it kills the process, for [router.Route].
func (b Backoff) Poisoned(msg *message.Message, cause error) {
	change, err := parseOnce(msg)
	if err != nil {
		return
	}
	delivery, _ := stream.DeliveryOf(msg)
	job := job(change, entryOf(msg), delivery, router.Leases(msg))
	if job.Known, err = b.Store.Load(msg.Context(), change.Repo); err == nil {
		_ = b.failed(msg.Context(), job, cause)
	}
}

func isForcedRemoval(change events.Change) bool {
	return change.Type == events.ChangeRemoved && change.Force
}

// waiting returns the error of a job that waits for the end of a trouble.
func waiting(job Job, t state.Trouble) error {
	remaining := max(t.Until.Sub(job.now()), time.Millisecond)
	disposition := events.Contention
	if job.Change.Type == events.ChangeDue && job.Change.OnBusy == events.BusySkip {
		disposition = events.Permanent
	}
	return &events.Error{
		Disposition: disposition, Scope: events.ScopeNone, Class: t.Class, RetryAfter: remaining,
		Err: fmt.Errorf("%s waits for %v, after %d failures in a row, the last of class %s",
			job.Change.Repo, remaining.Round(time.Millisecond), t.Failures, t.Class),
	}
}

// failed records a failure and returns its error with the delay until the next attempt.
func (b Backoff) failed(ctx context.Context, job Job, err error) error {
	disposition, scope := events.DispositionOf(err), events.ScopeOf(err)
	ofHost := scope == events.ScopeHost || scope == events.ScopeHostCredential
	switch {
	case ctx.Err() != nil, scope == events.ScopeNone, disposition == events.Malformed:
		return err
	case disposition == events.Contention && !ofHost:
		return err
	case isMistake(job, err): // its result tells who has made it; the repository is well
		return err
	case scope == events.ScopeCredential && job.Change.Type != events.ChangePushed:
		scope = events.ScopeChange // it may be another credential, or another remote
	}
	t := troubleOf(job, scope, err)
	if scope == events.ScopeCredential && job.Known.HasGiven(t.App) {
		t = job.Known.Refuse(t)
		if recorded := b.record(ctx, job, t); recorded != nil && t.Next == nil {
			return redisError(recorded) // the app must not go on reading
		}
		return refusal(t, err)
	}
	t = job.Known.InARow(t)
	wait := events.RetryAfter(err)
	if !ofHost {
		wait = max(wait, b.delay(t))
	}
	next := t.At.Add(wait)
	if disposition != events.Permanent || scope == events.ScopeRepo {
		t.Until = &next
	}
	if disposition == events.Contention || disposition == events.Retryable && job.Attempt < b.Retry.Attempts() {
		t.Next = &next
	}
	_ = b.record(ctx, job, t)
	return &events.Error{Disposition: disposition, Scope: scope, Class: t.Class, RetryAfter: wait, Err: err}
}

// isMistake reports whether a change that no watch has requested failed because it names a ref that is not there, and has not
// failed before, which is recorded.
func isMistake(job Job, err error) bool {
	change := job.Change
	return events.ClassOf(err) == events.ClassNoRef && !change.Watched && !change.Ref.IsZero() && job.Attempt <= 1
}

// refusal returns the error of a refusal: the change is tried again until it is confirmed.
func refusal(t state.Trouble, err error) error {
	e := &events.Error{Disposition: events.Permanent, Scope: events.ScopeCredential, Class: t.Class, Err: err}
	if t.Next != nil {
		e.Disposition, e.RetryAfter = events.Contention, t.Next.Sub(t.At)
	}
	return e
}

// delay returns the time until the next attempt at what has failed.
func (b Backoff) delay(t state.Trouble) time.Duration {
	shared := t.Scope == events.ScopeRepo || t.Scope == events.ScopeCredential
	switch over := t.Failures - state.CircuitFailures; {
	case !shared:
		return b.Retry.Delay(t.Attempts)
	case over < 0:
		return b.Retry.Delay(t.Failures)
	default: // a quarter of it at random, so that repositories that failed together are not tried together
		wait := float64(min(b.Open<<min(over, 10), max(maxOpen, b.Open)))
		return time.Duration(wait * (0.75 + rand.Float64()/4))
	}
}

// troubleOf returns the trouble that an error of a job is, without its failures and its next attempt.
func troubleOf(job Job, scope events.Scope, err error) state.Trouble {
	change := job.Change
	return state.Trouble{
		Scope: scope, App: change.App, Ref: change.Ref.String(), Operation: change.Type.Operation(),
		Credential: change.Credential, Watched: change.Watched || change.Type == events.ChangeDue,
		Class: events.ClassOf(err), Error: causeOf(err, change.Repo), Attempts: job.Attempt, Job: change.ID,
		At: job.now().UTC(),
	}
}

// steps name what was tried.
var steps = []string{"sync", "poll", "remove", "move", "fetch", "list refs of"}

// causeOf returns the text of an error without the steps in front that only name its repository, next to which it is
// shown: "poll acme/widgets: list refs of acme/widgets: …".
func causeOf(err error, repo events.RepoPath) string {
	text := router.OneLine(err)
	for {
		step, rest, ok := strings.Cut(text, ": ")
		what, named := strings.CutSuffix(step, " "+repo.String())
		if !ok || !named || !slices.Contains(steps, what) {
			return text
		}
		text = rest
	}
}

// record stores a trouble. It logs and returns the error of Redis.
func (b Backoff) record(ctx context.Context, job Job, t state.Trouble) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	repo := job.Change.Repo
	if err := b.Store.Record(ctx, job.Known, repo, job.Fence, t); err != nil {
		b.Log.WarnContext(ctx, "failure not recorded", "repo", repo.String(), "class", string(t.Class), "error", err)
		return err
	}
	if t.Scope == events.ScopeRepo && t.Failures >= state.CircuitFailures {
		b.Log.WarnContext(ctx, "circuit opened", "repo", repo.String(), "class", string(t.Class),
			"failures", t.Failures, "until", *t.Until)
		b.Observe(state.CircuitOpen)
	}
	return nil
}

// worked adds the end of the troubles that an outcome disproves. An outcome without state, such as that of an
// outdated change, proves nothing, unless it is that of a poll.
func (b Backoff) worked(ctx context.Context, job Job, outcome Outcome) Outcome {
	if len(outcome.State) == 0 && outcome.Result.Type != events.ResultPolled {
		return outcome
	}
	circuit := job.Known.CircuitAt(job.now())
	if circuit.Trips > 0 {
		b.Log.InfoContext(ctx, "circuit closed", "repo", job.Change.Repo.String(), "failures", circuit.Failures)
		b.Observe(state.CircuitClosed)
	}
	switch {
	case outcome.Forget: // forgetting the state includes its troubles
		return outcome
	case outcome.Result.Type == events.ResultFailed: // the remote has answered, and the answer is refused
		job.Known.Forget(func(t state.Trouble) bool { return t.Scope == events.ScopeRepo || isOfCredential(t, job.Change) })
		refusal := events.Errorf(events.Permanent, outcome.Result.Class, "%s", outcome.Result.Error)
		_ = b.record(ctx, job, job.Known.InARow(troubleOf(job, events.ScopeChange, refusal)))
		return outcome
	}
	return outcome.withoutTroubles(job.Known, disproved(job.Change, outcome.Result))
}

// withoutTroubles adds to an outcome the removal of the troubles that match from a state.
func (o Outcome) withoutTroubles(known state.Repo, match func(state.Trouble) bool) Outcome {
	known.Forget(match)
	set, drop := known.TroubleFields()
	if len(set) > 0 {
		maps.Copy(set, o.State)
		o.State = set
	}
	o.Drop = slices.Concat(o.Drop, drop)
	return o
}

// isOfCredential reports whether a trouble is a refusal of the credential of a sync.
func isOfCredential(t state.Trouble, change events.Change) bool {
	return t.Scope == events.ScopeCredential && change.Type == events.ChangePushed &&
		t.App == change.App && t.Credential == change.Credential
}

// disproved returns whether a success disproves a trouble.
func disproved(change events.Change, result events.Result) func(state.Trouble) bool {
	return func(t state.Trouble) bool {
		ofApp := t.App == change.App
		switch {
		case t.Scope == events.ScopeCredential:
			return isOfCredential(t, change)
		case t.Scope == events.ScopeHostCredential && !t.IsOfPoll():
			return change.Type != events.ChangeDue && !isForcedRemoval(change) && t.Credential == change.Credential
		case t.Scope != events.ScopeChange:
			return true
		case change.Type == events.ChangeDue:
			upToDate := result.Due == 0 && t.Ref == ""
			return (ofApp || change.App == "") && (t.IsOfPoll() || upToDate)
		case t.IsOfPoll():
			return true
		case change.Type == events.ChangePushed:
			return ofApp && (t.Ref == "" || t.Ref == change.Ref.String() || t.Ref == result.Ref.String())
		}
		return t.Ref == change.Ref.String() || ofApp && t.Ref == "" // a removed ref
	}
}

// deny records that the remote has refused the credential of a poll's source, or hides the repository from it, if
// err says so, for each app that watches with it and was given something. It returns the error of the poll, which is
// tried again like a sync until all these refusals are confirmed.
func (h *Handlers) deny(ctx context.Context, job Job, watches []watch.Watch, from source, err error) error {
	if events.ScopeOf(err) != events.ScopeCredential {
		return err
	}
	failed := err
	for _, w := range watches {
		if watched(w) != from || job.Known.Denied(w.App, w.Credential) || !job.Known.HasGiven(w.App) {
			continue
		}
		t := troubleOf(job, events.ScopeCredential, err)
		t.App, t.Credential = w.App, w.Credential
		t = job.Known.Refuse(t)
		if err := h.States.Record(ctx, job.Known, job.Change.Repo, job.Fence, t); err != nil {
			return redisError(err)
		}
		if t.Next != nil {
			failed = refusal(t, err)
		}
	}
	return failed
}

// proveOther lists the refs with the credential of an app that the poll has not used, chosen at
// random, to learn whether the remote still accepts it: without pushes, nothing else would reveal a
// refusal. Failures of other scopes are left to the next poll.
func (h *Handlers) proveOther(ctx context.Context, job Job, watches []watch.Watch, admitted watch.Watch) error {
	var others []source
	for _, w := range watches {
		from := watched(w)
		isKnown := job.Known.HasGiven(w.App) && !job.Known.IsRefused(w.App, w.Credential)
		if from != watched(admitted) && isKnown && !slices.Contains(others, from) {
			others = append(others, from)
		}
	}
	if len(others) == 0 {
		return nil
	}
	from := others[rand.IntN(len(others))]
	_, err := h.listRefs(ctx, job, job.Change.Repo, from)
	if events.ScopeOf(err) != events.ScopeCredential {
		return nil
	}
	if err = h.deny(ctx, job, watches, from, err); events.ScopeOf(err) == events.ScopeUs {
		return err
	}
	return nil
}

// forgetUnwatched forgets the troubles of changes that watches requested, for apps that watch nothing any more that
// the change was for, and those of credentials that no watch names: no poll has the chance to disprove them. An app
// that watches again must not read with a credential that was refused, so what it was given keeps the refusal.
func forgetUnwatched(known state.Repo, watches []watch.Watch) {
	known.Forget(func(t state.Trouble) bool {
		switch {
		case t.Scope == events.ScopeCredential:
			keeps := t.App != "" && known.HasGiven(t.App)
			return !keeps && !isNamed(t, watches)
		case t.Scope == events.ScopeHostCredential:
			named := func(w watch.Watch) bool { return w.Credential == t.Credential }
			return !t.IsOfPoll() && !slices.ContainsFunc(watches, named)
		case !t.Watched, t.App == "", t.Scope != events.ScopeChange:
			return false
		}
		ref, _ := events.ParseRef(t.Ref)
		return !slices.ContainsFunc(watches, func(w watch.Watch) bool {
			isOfRef := t.IsOfPoll() || w.Ref.Matches(ref) || w.Ref.IsDefault() && ref.IsZero()
			return w.App == t.App && isOfRef
		})
	})
}

// forgetReplaced forgets the troubles of an app's credentials that none of its watches names, as another one works.
func forgetReplaced(known state.Repo, watches []watch.Watch, app string) {
	known.Forget(func(t state.Trouble) bool {
		return t.Scope == events.ScopeCredential && t.App == app && !isNamed(t, watches)
	})
}

// forgetUngiven forgets the troubles of credentials of apps that have received nothing, as a poll has found nothing
// for them to sync either. app is that of the poll, or "" for all.
func forgetUngiven(known state.Repo, app string) {
	known.Forget(func(t state.Trouble) bool {
		return t.Scope == events.ScopeCredential && (app == "" || t.App == app) && !known.HasGiven(t.App)
	})
}

// isNamed reports whether a watch of the app names the credential of a trouble.
func isNamed(t state.Trouble, watches []watch.Watch) bool {
	return slices.ContainsFunc(watches, func(w watch.Watch) bool {
		return w.App == t.App && w.Credential == t.Credential
	})
}
