package handlers_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/router"
)

// gauntlet is a handler behind a backoff on a real store, and a clock. The test sets what it returns.
type gauntlet struct {
	t      *testing.T
	client redis.UniversalClient
	handle handlers.Handler
	job    handlers.Job
	store  *state.Store
	now    time.Time

	answer error
	result events.Result     // of a success
	state  map[string]string // of a success
	drop   []string          // by the last outcome
	calls  int
	log    strings.Builder
	phases []state.CircuitPhase
}

// newGauntlet returns a gauntlet and marks the test as parallel.
func newGauntlet(t *testing.T) *gauntlet {
	t.Helper()
	t.Parallel()
	client := redistest.Start(t).Client()
	change, err := events.NewChange(events.Change{URL: "https://example.com/Acme/Widgets.git", App: "docs", Credential: "one"})
	must(t, err)
	g := &gauntlet{
		t: t, client: client, store: state.NewStore(client, events.DefaultNamespace), now: time.Now(), state: map[string]string{"synced": "now"},
		result: events.Result{Type: events.ResultSynced},
	}
	g.job = handlers.Job{Change: change, Entry: "1-0", Attempt: 1, Fence: 7, Now: func() time.Time { return g.now }}
	must(t, client.HSet(context.Background(), events.DefaultNamespace.Locks()+change.Repo.Key(), "fence", "7").Err())
	g.handle = handlers.Backoff{
		Store: g.store, Open: time.Minute, Retry: router.Retry{Base: time.Second, MaxAttempts: 9},
		Log:     slog.New(slog.NewTextHandler(&g.log, nil)),
		Observe: func(to state.CircuitPhase) { g.phases = append(g.phases, to) },
	}.Wrap(func(context.Context, handlers.Job) (handlers.Outcome, error) {
		g.calls++
		if g.answer != nil {
			return handlers.Outcome{}, g.answer
		}
		return handlers.Outcome{Result: g.result, State: g.state}, nil
	})
	return g
}

// run handles the change once and settles the outcome.
func (g *gauntlet) run(answer error) error {
	g.t.Helper()
	g.answer = answer
	ctx, key := context.Background(), events.DefaultNamespace.Repo(g.job.Change.Repo)
	outcome, err := g.handle(ctx, g.job)
	if g.drop = outcome.Drop; len(g.drop) > 0 {
		must(g.t, g.client.HDel(ctx, key, g.drop...).Err())
	}
	if len(outcome.State) > 0 {
		must(g.t, g.client.HSet(ctx, key, outcome.State).Err())
	}
	return err
}

// known returns the repository's state.
func (g *gauntlet) known() state.Repo {
	g.t.Helper()
	known := testenv.Must(g.store.Load(context.Background(), g.job.Change.Repo))(g.t)
	return known
}

func (g *gauntlet) circuit() state.Circuit { return g.known().CircuitAt(g.now) }

// fail lets the change fail n times, each time after the wait.
func (g *gauntlet) fail(n int, answer error) (err error) {
	g.t.Helper()
	for range n {
		g.now = g.now.Add(time.Hour)
		if err = g.run(answer); !errors.Is(err, answer) {
			g.t.Fatalf("%v, want %v", err, answer)
		}
	}
	return err
}

func troubleOf(scope events.Scope, class events.Class) error {
	return &events.Error{Disposition: events.Retryable, Scope: scope, Class: class, Err: errors.New("HTTP status 502")}
}

var errServer = troubleOf(events.ScopeRepo, events.ClassServer)

func TestFailuresInARowOpenTheCircuit(t *testing.T) {
	g := newGauntlet(t)
	for n, longest := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second} {
		err := g.fail(1, errServer)
		if wait := events.RetryAfter(err); wait < longest/2 || wait > longest || g.circuit().Phase() != state.CircuitClosed || g.circuit().Failures != n+1 {
			t.Errorf("failure %d: retry after %v, %+v; want half to all of %v", n+1, wait, g.circuit(), longest)
		}
	}
	for trip, longest := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute, 10 * time.Minute} {
		err := g.fail(1, errServer)
		c, wait := g.circuit(), events.RetryAfter(err)
		if events.DispositionOf(err) != events.Retryable || events.ClassOf(err) != events.ClassServer || wait < longest*3/4 || wait > longest {
			t.Fatalf("trip %d: %v, retry after %v; want the same failure, and three quarters to all of %v", trip+1, err, wait, longest)
		}
		if c.Phase() != state.CircuitOpen || c.Trips != trip+1 || !c.Until.Equal(g.now.Add(wait)) {
			t.Errorf("trip %d: %+v", trip+1, c)
		}
	}
	if !strings.Contains(g.log.String(), "level=WARN") || !strings.Contains(g.log.String(), "repo=Acme/Widgets class=server failures=5 until=") {
		t.Errorf("log:\n%s", &g.log)
	}
	calls := g.calls
	err := g.run(nil)
	if g.calls != calls || events.DispositionOf(err) != events.Contention || events.ScopeOf(err) != events.ScopeNone || events.RetryAfter(err) < 7*time.Minute {
		t.Errorf("while it is open: %v, retry after %v; want it refused until then, at no cost of an attempt", err, events.RetryAfter(err))
	}
	if failing, spelled := g.known().Failing(); len(failing) != 1 || spelled != "Acme/Widgets" || failing[0].App != "docs" || failing[0].Operation != "sync" ||
		failing[0].Class != events.ClassServer || !failing[0].At.Equal(g.now) || !failing[0].Next.Equal(g.circuit().Until) {
		t.Errorf("%+v of %s", failing, spelled)
	}
}

func TestProbeOfACircuit(t *testing.T) {
	const open, half, closed = state.CircuitOpen, state.CircuitHalfOpen, state.CircuitClosed
	for name, tc := range map[string]struct {
		answer error
		phase  state.CircuitPhase
		phases []state.CircuitPhase
	}{
		"it works":              {nil, closed, []state.CircuitPhase{half, closed}},
		"it fails":              {errServer, open, []state.CircuitPhase{half, open}},
		"refused credential":    {events.Errorf(events.Permanent, events.ClassAuth, "refused"), half, []state.CircuitPhase{half}},
		"failure of the volume": {events.Errorf(events.Retryable, events.ClassVolume, "disk full"), half, []state.CircuitPhase{half}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGauntlet(t)
			_ = g.fail(5, errServer)
			g.now, g.phases = g.now.Add(time.Minute), nil
			if err := g.run(tc.answer); (err == nil) != (tc.answer == nil) || g.calls != 6 {
				t.Fatalf("error %v after %d calls; want the probe admitted", err, g.calls)
			}
			if c := g.circuit(); c.Phase() != tc.phase || !slices.Equal(g.phases, tc.phases) {
				t.Errorf("then %v (%+v), observed %v; want %v, %v", c.Phase(), c, g.phases, tc.phase, tc.phases)
			}
		})
	}
}

// TestOnlyWhoNeedsWhatFailedWaits lets a change fail, and then tries others of the same repository.
func TestOnlyWhoNeedsWhatFailedWaits(t *testing.T) {
	as := func(app, credential string) events.Change {
		return events.Change{Type: events.ChangePushed, App: app, Credential: credential}
	}
	poll, forced := events.Change{Type: events.ChangeDue}, events.Change{Type: events.ChangeRemoved, Force: true}
	for name, tc := range map[string]struct {
		err   error
		other events.Change
		waits bool
	}{
		"the repository":                     {errServer, as("scan", "two"), true},
		"the repository, a poll":             {errServer, poll, true},
		"the repository, a forced removal":   {errServer, forced, false},
		"a credential":                       {troubleOf(events.ScopeCredential, events.ClassAuth), as("docs", "one"), true},
		"a credential, another of the app":   {troubleOf(events.ScopeCredential, events.ClassAuth), as("docs", "two"), false},
		"a credential, another app":          {troubleOf(events.ScopeCredential, events.ClassAuth), as("scan", "two"), false},
		"a credential, a poll":               {troubleOf(events.ScopeCredential, events.ClassAuth), poll, false},
		"a refused credential":               {events.Errorf(events.Permanent, events.ClassAuth, "refused"), as("docs", "one"), false},
		"the change":                         {troubleOf(events.ScopeChange, events.ClassNetwork), as("docs", "one"), false},
		"the volume":                         {troubleOf(events.ScopeUs, events.ClassVolume), as("docs", "one"), false},
		"the host":                           {troubleOf(events.ScopeHost, events.ClassBusy), as("docs", "one"), false},
		"a turn":                             {&events.Error{Disposition: events.Contention, Scope: events.ScopeNone, Err: errServer}, as("docs", "one"), false},
		"a repository, permanently for that": {&events.Error{Disposition: events.Permanent, Scope: events.ScopeRepo, Err: errServer}, as("scan", "two"), true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGauntlet(t)
			_ = g.run(tc.err)
			tc.other.Repo, tc.other.URL = g.job.Change.Repo, g.job.Change.URL
			g.job.Change = tc.other
			if err := g.run(nil); (err != nil) != tc.waits {
				t.Errorf("the other: %v, want it to wait: %v", err, tc.waits)
			}
		})
	}
}

func TestSuccessEndsTheTroublesThatItDisproves(t *testing.T) {
	const main, topic = "refs/heads/main", "refs/heads/topic"
	trouble := func(scope events.Scope, operation, app, ref string) state.Trouble {
		return state.Trouble{Scope: scope, Operation: operation, App: app, Ref: ref, Credential: "one"}
	}
	two := trouble(events.ScopeHostCredential, "sync", "scan", main)
	poll := trouble(events.ScopeHostCredential, "poll", "", "")
	two.Credential, poll.Credential = "two", ""
	fails := map[string]state.Trouble{
		"repo": trouble(events.ScopeRepo, "sync", "scan", main), "host": trouble(events.ScopeHost, "sync", "scan", main),
		"host of one": trouble(events.ScopeHostCredential, "sync", "scan", main), "host of two": two, "host of a poll": poll,
		"docs' credential": trouble(events.ScopeCredential, "sync", "docs", main), "scan's credential": trouble(events.ScopeCredential, "sync", "scan", main),
		"docs": trouble("", "sync", "docs", ""), "docs' main": trouble("", "sync", "docs", main), "docs' topic": trouble("", "sync", "docs", topic),
		"scan's main": trouble("", "sync", "scan", main), "poll": trouble("", "poll", "", ""), "scan's poll": trouble("", "poll", "scan", ""),
	}
	always := []string{"repo", "host", "host of a poll"}
	for name, tc := range map[string]struct {
		change events.Change
		result events.Result
		want   []string
	}{
		"sync of main": {events.Change{Type: events.ChangePushed, App: "docs", Credential: "one", Ref: mustRef(main)}, events.Result{}, []string{"docs' credential", "docs", "docs' main", "poll", "scan's poll", "host of one"}},
		"sync of the default": {
			events.Change{Type: events.ChangePushed, App: "docs", Credential: "one"}, events.Result{Ref: mustRef(main)},
			[]string{"docs' credential", "docs", "docs' main", "poll", "scan's poll", "host of one"},
		},
		"sync with another credential": {events.Change{Type: events.ChangePushed, App: "docs", Credential: "two", Ref: mustRef(topic)}, events.Result{}, []string{"docs", "docs' topic", "poll", "scan's poll", "host of two"}},
		"poll":                         {events.Change{Type: events.ChangeDue}, events.Result{}, []string{"docs", "poll", "scan's poll"}},
		"poll with changes":            {events.Change{Type: events.ChangeDue}, events.Result{Due: 1}, []string{"poll", "scan's poll"}},
		"poll for docs":                {events.Change{Type: events.ChangeDue, App: "docs"}, events.Result{}, []string{"docs"}},
		"poll for docs, changes":       {events.Change{Type: events.ChangeDue, App: "docs"}, events.Result{Due: 1}, nil},
		"removal of topic":             {events.Change{Type: events.ChangeRemoved, Ref: mustRef(topic)}, events.Result{}, []string{"docs' topic", "poll", "scan's poll"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGauntlet(t)
			known := state.RepoOf(map[string]string{})
			for _, one := range fails {
				must(t, g.store.Record(context.Background(), known, g.job.Change.Repo, 7, one))
			}
			tc.change.Repo, tc.change.URL = g.job.Change.Repo, g.job.Change.URL
			g.job.Change, g.result = tc.change, tc.result
			must(t, g.run(nil))
			left, _ := g.known().Failing()
			for failure, one := range fails {
				one.At = time.Time{}
				gone := !slices.ContainsFunc(left, func(t state.Trouble) bool { t.At = time.Time{}; return t == one })
				if want := slices.Contains(slices.Concat(always, tc.want), failure); gone != want {
					t.Errorf("%s ends %s: %v, want %v", name, failure, gone, want)
				}
			}
		})
	}
}

func TestSuccessResetsFailures(t *testing.T) {
	g := newGauntlet(t)
	_ = g.fail(4, errServer)
	g.now = g.now.Add(time.Hour)
	must(t, g.run(nil))
	if _, shared := g.state[state.TroubleField]; shared || g.circuit().Failures != 0 || !slices.Equal(g.drop, []string{state.TroubleField}) {
		t.Errorf("failures %d, handler's own map %v, dropped %q", g.circuit().Failures, g.state, g.drop)
	}
	_ = g.fail(4, errServer)
	if c := g.circuit(); c.Phase() != state.CircuitClosed || len(g.phases) != 0 {
		t.Errorf("%v, observed %v; want failures that are not in a row to do nothing", c.Phase(), g.phases)
	}
	g.state, g.now = nil, g.now.Add(time.Hour) // a change that is past sets no state
	if err := g.run(nil); err != nil || g.circuit().Failures != 4 {
		t.Errorf("error %v, failures %d; want the count kept", err, g.circuit().Failures)
	}
}

func TestRefusedCommitIsATroubleOfTheChange(t *testing.T) {
	g := newGauntlet(t)
	_ = g.fail(1, errServer)
	g.now, g.result = g.now.Add(time.Hour), events.Result{Type: events.ResultFailed, Class: events.ClassRefused, Error: "nobody signed it"}
	must(t, g.run(nil))
	if failing, _ := g.known().Failing(); len(failing) != 1 || failing[0].Scope != events.ScopeChange || failing[0].Error != "nobody signed it" || failing[0].Next != nil {
		t.Errorf("%+v", failing)
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

func TestPollIsSkippedWhileItWouldWait(t *testing.T) {
	g := newGauntlet(t)
	_ = g.fail(1, errServer)
	g.job.Change.Type = events.ChangeDue
	if err := g.run(nil); events.DispositionOf(err) != events.Contention {
		t.Errorf("a poll that must not be skipped: %v, want it retried", err)
	}
	g.job.Change.OnBusy = events.BusySkip
	if err := g.run(nil); events.DispositionOf(err) != events.Permanent || events.ScopeOf(err) != events.ScopeNone || g.calls != 1 {
		t.Errorf("a poll that may be skipped: %v after %d calls, want it skipped", err, g.calls)
	}
}

func TestLastAttemptHasNoNext(t *testing.T) {
	for name, tc := range map[string]struct {
		err         error
		attempt     int
		next, until bool
	}{
		"an attempt":          {troubleOf(events.ScopeChange, events.ClassInternal), 8, true, true},
		"the last":            {troubleOf(events.ScopeChange, events.ClassInternal), 9, false, true},
		"permanent":           {events.Errorf(events.Permanent, events.ClassConflict, "another repository"), 1, false, false},
		"the repository's":    {errServer, 9, false, true}, // others wait
		"a wait for the host": {&events.Error{Disposition: events.Contention, Scope: events.ScopeHost, RetryAfter: time.Minute, Err: errServer}, 9, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGauntlet(t)
			g.job.Attempt = tc.attempt
			_ = g.run(tc.err)
			if failing, _ := g.known().Failing(); len(failing) != 1 || (failing[0].Next != nil) != tc.next || (failing[0].Until != nil) != tc.until || failing[0].Attempts != tc.attempt {
				t.Errorf("%+v, want one with a next attempt: %v, a wait: %v", failing, tc.next, tc.until)
			}
		})
	}
}

// A ref that is not there is a mistake of whom requested it, unless a watch did.
func TestMistypedRefIsNoTroubleOfTheRepository(t *testing.T) {
	for name, tc := range map[string]struct {
		ref      string
		watched  bool
		troubles int
	}{
		"requested by hand":  {"refs/heads/tpyo", false, 0},
		"requested by watch": {"refs/heads/gone", true, 1},
		"the default branch": {"", false, 1}, // the repository is empty
	} {
		t.Run(name, func(t *testing.T) {
			g := newGauntlet(t)
			g.job.Change.Watched, g.job.Change.Ref = tc.watched, events.Ref{}
			if tc.ref != "" {
				ref, err := events.ParseRef(tc.ref)
				must(t, err)
				g.job.Change.Ref = ref
			}
			if err := g.run(events.Errorf(events.Permanent, events.ClassNoRef, "no such ref")); events.ClassOf(err) != events.ClassNoRef {
				t.Errorf("%v, want the change to fail", err)
			}
			if failing, _ := g.known().Failing(); len(failing) != tc.troubles {
				t.Errorf("%+v, want %d", failing, tc.troubles)
			}
		})
	}
}

func TestRefusalThatRedisDoesNotStoreIsNotSettled(t *testing.T) {
	g := newGauntlet(t)
	g.given("docs")
	_ = g.run(errRefused)
	g.now = g.now.Add(time.Hour)
	must(t, g.client.Del(context.Background(), events.DefaultNamespace.Failing()).Err())
	must(t, g.client.Set(context.Background(), events.DefaultNamespace.Failing(), "not a hash", 0).Err())
	err := g.run(errRefused)
	if events.DispositionOf(err) != events.Contention || events.ScopeOf(err) != events.ScopeUs {
		t.Errorf("scope %q, %v: %v; want it tried again, uncounted", events.ScopeOf(err), events.DispositionOf(err), err)
	}
	if err := g.run(events.Errorf(events.Permanent, events.ClassNoRef, "no ref")); events.ClassOf(err) != events.ClassNoRef {
		t.Errorf("%v; want the failure of a change settled", err)
	}
}

// Errors are shown beside their repository, so they begin with their cause.
func TestErrorsBeginWithTheirCause(t *testing.T) {
	repo := testenv.Must(events.ParseRepoPath("acme/widgets"))(t)
	for text, want := range map[string]string{
		"poll acme/widgets: list refs of acme/widgets: git.example answers 404": "git.example answers 404",
		"sync acme/widgets: access denied to acme/widgets: exit status 1":       "access denied to acme/widgets: exit status 1",
		"sync acme/gadgets: refused":                                            "sync acme/gadgets: refused",
		"refused":                                                               "refused",
		"poll acme/widgets":                                                     "poll acme/widgets",
	} {
		if got := handlers.CauseOf(errors.New(text), repo); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
