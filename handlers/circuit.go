package handlers

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"lockstep/events"
	"lockstep/internal/state"
)

// Circuits are the repositories' circuit breakers; a [state.Store] is.
type Circuits interface {
	Circuit(ctx context.Context, repo events.RepoPath) (state.Circuit, error)
	Failed(ctx context.Context, repo events.RepoPath, fence uint64, p state.CircuitPolicy) (state.Circuit, bool, error)
}

// Circuit leaves a repository alone for a while after it has failed several times in a row, whichever
// changes asked for it, so that a remote that is down or ill is not asked again for each of them.
//
//	closed     all changes are worked on. Policy.Failures failures in a row open it
//	open       changes go back to the stream until it half-opens, which is no attempt of theirs; a poll that
//	           need not be waited for is skipped, or they would pile up for as long as a remote is away
//	half-open  the next change is the probe; the lease makes it one at a time. Success closes the
//	           circuit, a failure opens it for twice as long
//
// What counts is what may pass, and has to do with this repository's remote or its objects:
//
//	network, server, corrupt                 counts
//	auth, not_found, no_ref                  does not: the remote is well and has answered. A failed result is
//	                                         published at once, and nothing is tried again; one app's bad
//	                                         credential must not stop the others
//	hostile, conflict, config, malformed     does not: another try is not made anyway
//	volume, internal                         does not: it is ours, and would befall every repository
//	busy, stale, shutdown, circuit           does not: nothing was tried, or nothing was wrong with it
//
// A failure that does not count does not reset the count either. A success is a poll, or an outcome that sets
// state: any other that sets none, as of a change that is past, has proved nothing. (One that an earlier sync
// had answered already sets state too; at worst, then, the count begins anew.) The reset rides along in
// it, and takes effect when the change is settled. A forced removal asks no remote, and is let through.
type Circuit struct {
	States Circuits
	Policy state.CircuitPolicy // default 5 failures, open for 30 s at first and 10 min, or that if it is longer, at most
	Log    *slog.Logger        // default slog.Default
	// Observe is told of each change of phase as it happens, a half-open circuit once for each probe;
	// nil: nobody.
	Observe func(to state.CircuitPhase)
}

// countTimeout bounds how long a failure waits to be counted.
const countTimeout = 2 * time.Second

// Wrap puts the circuit before a handler that runs under the repository's lease.
func (c Circuit) Wrap(next events.Handler) events.Handler {
	c.Policy.Failures = cmp.Or(c.Policy.Failures, 5)
	c.Policy.Open = cmp.Or(c.Policy.Open, 30*time.Second)
	c.Policy.Max = cmp.Or(c.Policy.Max, max(10*time.Minute, c.Policy.Open))
	c.Log = cmp.Or(c.Log, slog.Default())
	if c.Observe == nil {
		c.Observe = func(state.CircuitPhase) {}
	}
	return func(ctx context.Context, job events.Job) (events.Outcome, error) {
		if job.Change.Type == events.ChangeRemoved && job.Change.Force {
			return next(ctx, job)
		}
		circuit, err := c.States.Circuit(ctx, job.Change.Repo)
		if err != nil {
			return events.Outcome{}, redisFault(err)
		}
		switch circuit.Phase() {
		case state.CircuitOpen:
			return events.Outcome{}, refused(job, circuit)
		case state.CircuitHalfOpen:
			c.Observe(state.CircuitHalfOpen)
		}
		outcome, err := next(ctx, job)
		if err != nil {
			return events.Outcome{}, c.failed(ctx, job, err)
		}
		return c.worked(ctx, job, circuit, outcome), nil
	}
}

func refused(job events.Job, circuit state.Circuit) error {
	disposition := events.Contention
	if job.Change.Type == events.ChangeDue && job.Change.OnBusy == events.BusySkip {
		disposition = events.Permanent
	}
	return &events.Error{
		Disposition: disposition, Class: events.ClassCircuit, RetryAfter: circuit.Remaining(),
		Err: fmt.Errorf("circuit of %s is open after %d failures in a row, and half-opens in %v",
			job.Change.Repo, circuit.Failures, circuit.Remaining().Round(time.Millisecond)),
	}
}

// failed counts the failure if it counts. When that opened the circuit, coming back before it
// half-opens would be of no use. A failure that cannot be counted is a failure all the same.
func (c Circuit) failed(ctx context.Context, job events.Job, err error) error {
	class := events.ClassOf(err)
	if !counts(class) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countTimeout)
	defer cancel()
	repo := job.Change.Repo
	circuit, opened, countErr := c.States.Failed(ctx, repo, job.Fence, c.Policy)
	if countErr != nil {
		c.Log.WarnContext(ctx, "failure not counted", "repo", repo.String(), "class", string(class), "error", countErr)
		return err
	}
	if !opened {
		return err
	}
	c.Log.WarnContext(ctx, "circuit opens: the repository is left alone", "repo", repo.String(), "class", string(class),
		"failures", circuit.Failures, "until", circuit.Until)
	c.Observe(state.CircuitOpen)
	return &events.Error{Disposition: events.DispositionOf(err), Class: class, RetryAfter: circuit.Remaining(), Err: err}
}

// worked has the outcome reset the circuit.
func (c Circuit) worked(ctx context.Context, job events.Job, circuit state.Circuit, outcome events.Outcome) events.Outcome {
	reset, proved := circuit.ResetFields(), len(outcome.State) > 0 || outcome.Result.Type == events.ResultPolled
	if !proved || len(reset) == 0 {
		return outcome
	}
	if !outcome.Forget { // that leaves nothing to reset
		maps.Copy(reset, outcome.State)
		outcome.State = reset
	}
	if circuit.Trips > 0 {
		c.Log.InfoContext(ctx, "circuit closes: the repository works again", "repo", job.Change.Repo.String(), "failures", circuit.Failures)
		c.Observe(state.CircuitClosed)
	}
	return outcome
}

// counts reports whether a class of failures says that the remote, or what it sends, is ill.
func counts(class events.Class) bool {
	switch class {
	case events.ClassNetwork, events.ClassServer, events.ClassCorrupt:
		return true
	}
	return false
}
