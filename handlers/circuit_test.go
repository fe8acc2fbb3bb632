package handlers_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
)

// gauntlet is a handler behind a circuit breaker on a real store. The test sets what it returns.
type gauntlet struct {
	t      *testing.T
	handle handlers.Handler
	job    handlers.Job
	store  *state.Store
	set    func(fields ...any)

	answer error
	result events.ResultType // of a success
	state  map[string]string // of a success
	calls  int
	log    strings.Builder
	phases []state.CircuitPhase
}

// newGauntlet returns a gauntlet and marks the test as parallel.
func newGauntlet(t *testing.T) *gauntlet {
	t.Helper()
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	change, err := events.NewChange(events.Change{URL: "https://example.com/acme/widgets.git"})
	if err != nil {
		t.Fatal(err)
	}
	g := &gauntlet{t: t, store: state.NewStore(client, events.DefaultNamespace), result: events.ResultSynced, state: map[string]string{"synced": "now"}}
	g.job = handlers.Job{Change: change, Entry: "1-0", Fence: 7}
	g.set = func(fields ...any) {
		if err := client.HSet(ctx, events.DefaultNamespace.Repo(change.Repo), fields...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.HSet(ctx, events.DefaultNamespace.Locks()+change.Repo.Key(), "fence", "7").Err(); err != nil {
		t.Fatal(err)
	}
	g.handle = handlers.Circuit{
		Store: g.store, Policy: state.CircuitPolicy{Failures: 2, Open: time.Minute},
		Log:     slog.New(slog.NewTextHandler(&g.log, nil)),
		Observe: func(to state.CircuitPhase) { g.phases = append(g.phases, to) },
	}.Wrap(func(context.Context, handlers.Job) (handlers.Outcome, error) {
		g.calls++
		if g.answer != nil {
			return handlers.Outcome{}, g.answer
		}
		return handlers.Outcome{Result: g.job.Result(g.result), State: g.state}, nil
	})
	return g
}

// run handles the change once and settles the outcome.
func (g *gauntlet) run(answer error) error {
	g.t.Helper()
	g.answer = answer
	outcome, err := g.handle(context.Background(), g.job)
	if len(outcome.State) > 0 {
		g.set(outcome.State)
	}
	return err
}

func (g *gauntlet) circuit() state.Circuit {
	g.t.Helper()
	c, err := g.store.Circuit(context.Background(), g.job.Change.Repo)
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

var errServer = events.Errorf(events.Retryable, events.ClassServer, "HTTP status 502")

func TestCircuitOpensAfterFailuresInARow(t *testing.T) {
	g := newGauntlet(t)
	if err := g.run(errServer); !errors.Is(err, errServer) || events.RetryAfter(err) != 0 {
		t.Fatalf("first failure: %v, retry after %v; want it as it is", err, events.RetryAfter(err))
	}
	err := g.run(errServer)
	if !errors.Is(err, errServer) || events.DispositionOf(err) != events.Retryable || events.ClassOf(err) != events.ClassServer || events.RetryAfter(err) < 30*time.Second {
		t.Fatalf("the failure that opens it: %v, retry after %v; want the same failure, and to wait", err, events.RetryAfter(err))
	}
	err = g.run(nil)
	if g.calls != 2 || events.DispositionOf(err) != events.Contention || events.ClassOf(err) != events.ClassCircuit {
		t.Fatalf("while it is open: %v after %d calls; want it refused, at no cost of an attempt", err, g.calls)
	}
	if after := events.RetryAfter(err); after < 30*time.Second || after > time.Minute {
		t.Errorf("retry after %v, want when it half-opens", after)
	}
	if !strings.Contains(g.log.String(), "level=WARN") || !strings.Contains(g.log.String(), "repo=acme/widgets class=server failures=2 until=") {
		t.Errorf("log:\n%s", &g.log)
	}
}

func TestCircuitProbe(t *testing.T) {
	for name, tc := range map[string]struct {
		answer error
		phase  state.CircuitPhase
		phases []state.CircuitPhase
	}{
		"it works":              {nil, state.CircuitClosed, []state.CircuitPhase{state.CircuitHalfOpen, state.CircuitClosed}},
		"it fails":              {errServer, state.CircuitOpen, []state.CircuitPhase{state.CircuitHalfOpen, state.CircuitOpen}},
		"refused credential":    {events.Errorf(events.Permanent, events.ClassAuth, "refused"), state.CircuitHalfOpen, []state.CircuitPhase{state.CircuitHalfOpen}},
		"failure of the volume": {events.Errorf(events.Retryable, events.ClassVolume, "disk full"), state.CircuitHalfOpen, []state.CircuitPhase{state.CircuitHalfOpen}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGauntlet(t)
			g.set("failures", 2, "circuit_trips", 1, "circuit_open_until", 1)
			if err := g.run(tc.answer); (err == nil) != (tc.answer == nil) || g.calls != 1 {
				t.Fatalf("error %v after %d calls; want the probe admitted", err, g.calls)
			}
			if c := g.circuit(); c.Phase() != tc.phase || !slices.Equal(g.phases, tc.phases) {
				t.Errorf("then %v (%+v), observed %v; want %v, %v", c.Phase(), c, g.phases, tc.phase, tc.phases)
			}
		})
	}
}

func TestOnlyFailuresOfTheRemoteCount(t *testing.T) {
	for class, want := range map[events.Class]int{
		events.ClassNetwork: 1, events.ClassServer: 1, events.ClassCorrupt: 1,
		events.ClassAuth: 0, events.ClassNotFound: 0, events.ClassNoRef: 0, events.ClassHostile: 0, events.ClassConflict: 0,
		events.ClassConfig: 0, events.ClassMalformed: 0, events.ClassVolume: 0, events.ClassInternal: 0, events.ClassBusy: 0,
		events.ClassStale: 0, events.ClassShutdown: 0, events.ClassCircuit: 0,
	} {
		t.Run(string(class), func(t *testing.T) {
			g := newGauntlet(t)
			_ = g.run(events.Errorf(events.Retryable, class, "x"))
			if c := g.circuit(); c.Failures != want {
				t.Errorf("counted %d, want %d", c.Failures, want)
			}
		})
	}
}

func TestSuccessResetsFailures(t *testing.T) {
	g := newGauntlet(t)
	_ = g.run(errServer)
	if err := g.run(nil); err != nil {
		t.Fatal(err)
	}
	if _, shared := g.state["failures"]; shared || g.circuit().Failures != 0 {
		t.Errorf("failures %d, handler's own map %v", g.circuit().Failures, g.state)
	}
	_ = g.run(errServer)
	if c := g.circuit(); c.Phase() != state.CircuitClosed || len(g.phases) != 0 {
		t.Errorf("%v, observed %v; want two failures that are not in a row to do nothing", c.Phase(), g.phases)
	}
}

func TestForcedRemovalBypassesCircuit(t *testing.T) {
	g := newGauntlet(t)
	g.state = nil // a change that is past sets no state
	_ = g.run(errServer)
	if err := g.run(nil); err != nil || g.circuit().Failures != 1 {
		t.Errorf("error %v, failures %d; want the count kept", err, g.circuit().Failures)
	}
	g.set("failures", 2, "circuit_trips", 1, "circuit_open_until", time.Now().Add(time.Hour).UnixMilli())
	g.job.Change.Type, g.job.Change.Force = events.ChangeRemoved, true
	if err := g.run(nil); err != nil {
		t.Errorf("a forced removal: %v; want it admitted by an open circuit", err)
	}
}

func TestStoreErrorIsNotCounted(t *testing.T) {
	g := newGauntlet(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := g.handle(ctx, g.job)
	if g.calls != 0 || events.DispositionOf(err) != events.Contention || events.ClassOf(err) != events.ClassInternal {
		t.Errorf("%v after %d calls; want it retried", err, g.calls)
	}
}

func TestPollIsSkippedWhileCircuitIsOpen(t *testing.T) {
	g := newGauntlet(t)
	g.job.Change.Type = events.ChangeDue
	_, _ = g.run(errServer), g.run(errServer)
	if err := g.run(nil); events.DispositionOf(err) != events.Contention {
		t.Errorf("a poll that must not be skipped: %v, want it retried", err)
	}
	g.job.Change.OnBusy = events.BusySkip
	if err := g.run(nil); events.DispositionOf(err) != events.Permanent || events.ClassOf(err) != events.ClassCircuit || g.calls != 2 {
		t.Errorf("a poll that may be skipped: %v after %d calls, want it skipped", err, g.calls)
	}
}

func TestPollClosesCircuit(t *testing.T) {
	g := newGauntlet(t)
	g.job.Change.Type, g.result, g.state = events.ChangeDue, events.ResultPolled, nil
	for range 3 {
		if err := g.run(errServer); !errors.Is(err, errServer) {
			t.Fatal(err)
		}
		if err := g.run(nil); err != nil {
			t.Fatalf("%v: failures that are not in a row opened the circuit", err)
		}
	}
}
