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

// Circuit is a circuit breaker for repositories: after several consecutive failures it rejects changes to a repository for a
// while, so that changes do not each contact a remote that is down.
//
//	closed     all changes are handled; Policy.Failures consecutive failures open it
//	open       changes return to the stream until it half-opens, and no attempt is counted. A poll with
//	           on_busy=skip is skipped, so that polls do not pile up
//	half-open  the next change is a probe; the lease admits one at a time. Success closes the
//	           circuit, failure opens it for twice as long
//
// Only the classes network, server and corrupt count. Other failures neither open nor reset the circuit: the remote answered
// (one app's bad credential must not block the others), its host is at a limit of requests, the fault is local,
// or the remote was never contacted.
//
// A success is a poll, or an outcome that sets state. An outcome without state, such as that of an outdated change, does not
// count. The circuit is reset in the step that settles the change. A forced removal does not contact the remote, so it is
// always admitted.
type Circuit struct {
	Store  *state.Store
	Policy state.CircuitPolicy // by default 5 failures, open for 30 s at first and 10 min at most
	Log    *slog.Logger        // default slog.Default
	// Observe is called on each change of phase, and for each probe of a half-open circuit. Optional.
	Observe func(to state.CircuitPhase)
}

const countTimeout = 2 * time.Second

// Wrap returns next behind the circuit breaker. next runs under the repository's lease.
func (c Circuit) Wrap(next Handler) Handler {
	c.Policy.Failures = cmp.Or(c.Policy.Failures, 5)
	c.Policy.Open = cmp.Or(c.Policy.Open, 30*time.Second)
	c.Policy.Max = cmp.Or(c.Policy.Max, max(10*time.Minute, c.Policy.Open))
	c.Log = cmp.Or(c.Log, slog.Default())
	if c.Observe == nil {
		c.Observe = func(state.CircuitPhase) {}
	}
	return func(ctx context.Context, job Job) (Outcome, error) {
		if job.Change.Type == events.ChangeRemoved && job.Change.Force {
			return next(ctx, job)
		}
		circuit, err := c.Store.Circuit(ctx, job.Change.Repo)
		if err != nil {
			return Outcome{}, redisError(err)
		}
		switch circuit.Phase() {
		case state.CircuitOpen:
			return Outcome{}, refused(job, circuit)
		case state.CircuitHalfOpen:
			c.Observe(state.CircuitHalfOpen)
		}
		outcome, err := next(ctx, job)
		if err != nil {
			return Outcome{}, c.failed(ctx, job, err)
		}
		return c.worked(ctx, job, circuit, outcome), nil
	}
}

func refused(job Job, circuit state.Circuit) error {
	remaining := circuit.Remaining()
	disposition := events.Contention
	if job.Change.Type == events.ChangeDue && job.Change.OnBusy == events.BusySkip {
		disposition = events.Permanent
	}
	return &events.Error{
		Disposition: disposition, Scope: events.ScopeNone, Class: events.ClassCircuit, RetryAfter: remaining,
		Err: fmt.Errorf("circuit of %s is open (failures in a row: %d) and half-opens in %v",
			job.Change.Repo, circuit.Failures, remaining.Round(time.Millisecond)),
	}
}

// failed counts a failure if its class counts. If the circuit opens, the retry is delayed until it half-opens.
func (c Circuit) failed(ctx context.Context, job Job, err error) error {
	class := events.ClassOf(err)
	if !counts(class) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countTimeout)
	defer cancel()
	repo := job.Change.Repo
	circuit, opened, countErr := c.Store.Failed(ctx, repo, job.Fence, c.Policy)
	if countErr != nil {
		c.Log.WarnContext(ctx, "failure not counted", "repo", repo.String(), "class", string(class), "error", countErr)
		return err
	}
	if !opened {
		return err
	}
	c.Log.WarnContext(ctx, "circuit opened", "repo", repo.String(), "class", string(class),
		"failures", circuit.Failures, "until", circuit.Until)
	c.Observe(state.CircuitOpen)
	return &events.Error{Disposition: events.DispositionOf(err), Scope: events.ScopeRepo, Class: class, RetryAfter: circuit.Remaining(), Err: err}
}

// worked adds the reset of the circuit to an outcome.
func (c Circuit) worked(ctx context.Context, job Job, circuit state.Circuit, outcome Outcome) Outcome {
	reset, proved := circuit.ResetFields(), len(outcome.State) > 0 || outcome.Result.Type == events.ResultPolled
	if !proved || len(reset) == 0 {
		return outcome
	}
	if !outcome.Forget { // forgetting the state includes the circuit
		maps.Copy(reset, outcome.State)
		outcome.State = reset
	}
	if circuit.Trips > 0 {
		c.Log.InfoContext(ctx, "circuit closed", "repo", job.Change.Repo.String(), "failures", circuit.Failures)
		c.Observe(state.CircuitClosed)
	}
	return outcome
}

// counts reports whether failures of a class are the remote's fault.
func counts(class events.Class) bool {
	switch class {
	case events.ClassNetwork, events.ClassServer, events.ClassCorrupt:
		return true
	}
	return false
}
