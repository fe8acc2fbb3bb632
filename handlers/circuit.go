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

// CircuitStore stores the repositories' circuit breakers.
type CircuitStore interface {
	// Circuit returns the circuit breaker of repo.
	Circuit(ctx context.Context, repo events.RepoPath) (CircuitState, error)
	// Failed counts a failure under the lease with the given fence, and reports whether that opened the circuit. It
	// changes nothing if a later lease has been granted.
	Failed(ctx context.Context, repo events.RepoPath, fence uint64, p CircuitPolicy) (s CircuitState, opened bool, err error)
}

// CircuitState is a snapshot of a circuit breaker. The zero value is closed.
type CircuitState struct {
	Failures int       // consecutive failures of a class that counts
	Trips    int       // consecutive openings; 0 while closed
	Until    time.Time // when it half-opens, by Redis' clock; zero while closed
	Now      time.Time // when the state was read, by the same clock
}

// CircuitPolicy configures a circuit breaker.
type CircuitPolicy struct {
	Failures int           // consecutive failures that open it; default 5
	Open     time.Duration // first open time, doubled on each consecutive opening; default 30 s
	Max      time.Duration // maximum open time; default 10 min, or Open if that is longer
}

// CircuitPhase is the phase of a circuit breaker. It determines which changes are admitted.
type CircuitPhase string

// The phases.
const (
	CircuitClosed   CircuitPhase = "closed"    // admits all changes
	CircuitOpen     CircuitPhase = "open"      // admits none
	CircuitHalfOpen CircuitPhase = "half-open" // admits the next change as a probe; its lease excludes others
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
// (one app's bad credential must not block the others), its host is at a limit of requests (see [Hosts]), the fault is local,
// or the remote was never contacted.
//
// A success is a poll, or an outcome that sets state. An outcome without state, such as that of an outdated change, does not
// count. The circuit is reset in the step that settles the change. A forced removal does not contact the remote, so it is
// always admitted.
type Circuit struct {
	Store  CircuitStore
	Policy CircuitPolicy
	Log    *slog.Logger // default slog.Default
	// Observe is called on each change of phase, and for each probe of a half-open circuit. Optional.
	Observe func(to CircuitPhase)
}

const countTimeout = 2 * time.Second

// Wrap returns next behind the circuit breaker. next runs under the repository's lease.
func (c Circuit) Wrap(next Handler) Handler {
	c.Policy.Failures = cmp.Or(c.Policy.Failures, 5)
	c.Policy.Open = cmp.Or(c.Policy.Open, 30*time.Second)
	c.Policy.Max = cmp.Or(c.Policy.Max, max(10*time.Minute, c.Policy.Open))
	c.Log = cmp.Or(c.Log, slog.Default())
	if c.Observe == nil {
		c.Observe = func(CircuitPhase) {}
	}
	return func(ctx context.Context, job Job) (Outcome, error) {
		if job.Change.Type == events.ChangeRemoved && job.Change.Force {
			return next(ctx, job)
		}
		circuit, err := c.Store.Circuit(ctx, job.Change.Repo)
		if err != nil {
			return Outcome{}, redisError(err)
		}
		switch CircuitPhase(state.Circuit(circuit).Phase()) {
		case CircuitOpen:
			return Outcome{}, refused(job, circuit)
		case CircuitHalfOpen:
			c.Observe(CircuitHalfOpen)
		}
		outcome, err := next(ctx, job)
		if err != nil {
			return Outcome{}, c.failed(ctx, job, err)
		}
		return c.worked(ctx, job, circuit, outcome), nil
	}
}

func refused(job Job, circuit CircuitState) error {
	remaining := state.Circuit(circuit).Remaining()
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
	c.Observe(CircuitOpen)
	return &events.Error{
		Disposition: events.DispositionOf(err), Scope: events.ScopeRepo, Class: class, RetryAfter: state.Circuit(circuit).Remaining(), Err: err,
	}
}

// worked adds the reset of the circuit to an outcome.
func (c Circuit) worked(ctx context.Context, job Job, circuit CircuitState, outcome Outcome) Outcome {
	reset, proved := state.Circuit(circuit).ResetFields(), len(outcome.State) > 0 || outcome.Result.Type == events.ResultPolled
	if !proved || len(reset) == 0 {
		return outcome
	}
	if !outcome.Forget { // forgetting the state includes the circuit
		maps.Copy(reset, outcome.State)
		outcome.State = reset
	}
	if circuit.Trips > 0 {
		c.Log.InfoContext(ctx, "circuit closed", "repo", job.Change.Repo.String(), "failures", circuit.Failures)
		c.Observe(CircuitClosed)
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
