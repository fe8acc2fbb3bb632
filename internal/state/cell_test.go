package state_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// TestRepositoryIsInOneCell moves a repository between two cells, and repeats each step.
func TestRepositoryIsInOneCell(t *testing.T) {
	t.Parallel()
	ctx, client := t.Context(), redistest.Start(t).Client()
	repo, err := events.ParseRepoPath("Acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	old, here := events.Namespace("lockstep:{eu-1}:"), events.Namespace("lockstep:{eu-2}:")
	oldStates, newStates := state.NewStore(client, old), state.NewStore(client, here)
	lease := func(namespace events.Namespace) *locking.Lease {
		locker, err := locking.New(locking.Config{Redis: client, Prefix: namespace.Locks()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = locker.Close(ctx) })
		l, err := locker.Acquire(ctx, locking.Request{Key: repo.Key()})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	oldLease, newLease := lease(old), lease(here)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	load := func(s *state.Store) state.Repo {
		t.Helper()
		known, err := s.Load(ctx, repo)
		must(err)
		return known
	}
	carried := map[string]string{
		"repo": "Acme/widgets", "url": "https://git.example.com/acme/widgets", "synced": "2026-01-02T03:04:05Z",
		"given:refs/heads/main:search": "c1 . c0", "given:refs/heads/main:lost": "c1 -", "watched:refs/heads/main": "1",
		"trouble": `{"repo":"Acme/widgets","all":{"credential:bot:search":{"scope":"credential","app":"search","ref":"","operation":"sync","class":"auth","failures":1,"job":"j1","at":"2026-11-29T03:00:00Z","credential":"bot"}}}`,
	}
	stays := map[string]string{"asked:refs/heads/main:": "1-0 refs/heads/main c1 u", "chain:refs/heads/main": "- c1", "awaited": "{}", "tombstone": "1-0", "fence": "7", "head:refs/heads/main": "c1", "given:refs/heads/main:search": "c1 7-c1 c0"}
	must(client.HSet(ctx, old.Repo(repo), carried).Err())
	must(client.HSet(ctx, old.Repo(repo), stays).Err())
	must(client.Do(ctx, "XADD", old.Results(), "5-0", "a", "b").Err())
	must(client.Do(ctx, "ZADD", old.Poll(), "1", repo.Key()).Err())
	in := state.CellMove{Repo: repo, Cell: "eu-1", Epoch: 3}
	out := state.CellMove{Repo: repo, Cell: "eu-2", Epoch: 3, Pin: true}

	stale := oldLease.Guard()
	stale.Fence--
	if err := oldStates.Depart(ctx, client, out, stale, time.Second); !errors.Is(err, locking.ErrLost) {
		t.Errorf("Depart with another fence: %v, want %v", err, locking.ErrLost)
	}
	w, err := watch.New(watch.Watch{App: "search", URL: "https://git.example.com/acme/widgets"})
	must(err)
	must(load(oldStates).CheckHere(repo))
	if load(oldStates).IsOccupied() == load(newStates).IsOccupied() {
		t.Error("the repository is in both cells, or in none")
	}
	for range 2 {
		must(oldStates.Depart(ctx, client, out, oldLease.Guard(), time.Second))
		if move, last, _ := load(oldStates).MovedToCell(); last != "5-0" || !move.Pin {
			t.Errorf("the last result is %s, and the move %+v, want 5-0 and a pin", last, move)
		}
		must(client.Do(ctx, "XADD", old.Results(), "*", "a", "b").Err()) // changes nothing
	}
	if n := client.ZCard(ctx, old.Poll()).Val(); n != 0 {
		t.Error("the repository is still polled in the old cell")
	}
	known := load(oldStates)
	if err := known.CheckHere(repo); events.ClassOf(err) != events.ClassBusy {
		t.Errorf("the repository may be worked on in the old cell: %v", err)
	}
	if err := known.CheckHere(repo); events.DispositionOf(err) != events.Contention || events.ScopeOf(err) != events.ScopeNone || events.RetryAfter(err) <= 0 {
		t.Errorf("%v, scope %q, retried after %v: want it to wait, and to be nobody's trouble", err, events.ScopeOf(err), events.RetryAfter(err))
	}
	if _, err := watch.NewRegistry(client, old).Put(ctx, w); events.ClassOf(err) != events.ClassBusy {
		t.Errorf("its watches can be changed: %v", err)
	}
	if err := oldStates.Depart(ctx, client, state.CellMove{Repo: repo, Cell: "eu-3", Epoch: 4}, oldLease.Guard(), time.Second); events.ClassOf(err) != events.ClassConflict {
		t.Errorf("it can be moved to a third cell, too: %v", err)
	}
	if got := known.CarriedToCell(); !maps.Equal(got, carried) {
		t.Errorf("carried %v, want %v", got, carried)
	}
	for range 2 {
		must(watch.NewRegistry(client, here).Receive(ctx, []watch.Watch{w}, in.ArrivesMark()))
	}
	for range 2 {
		must(newStates.Activate(ctx, in, newLease.Guard(), known.CarriedToCell(), map[string]string{"refs/heads/main:search": "c1 d"}, true))
	}
	arrived := load(newStates)
	must(arrived.CheckHere(repo))
	if from, ok := arrived.From(); !ok || from != (state.CellMove{Cell: "eu-1", Epoch: 3}) || arrived.Given("search", mainRef(t)) != "c1" {
		t.Errorf("arrived from %v with %v", from, arrived)
	}
	if base, _, uncertain := arrived.Received("search", mainRef(t), "", "", ""); base != "c1" || uncertain {
		t.Errorf("base %q, uncertain %t: the app has what it was given in the other cell", base, uncertain)
	}
	for range 2 {
		must(oldStates.Vacate(ctx, out, oldLease.Guard()))
	}
	if left := load(oldStates); !left.IsVacated() || len(left.Exported()) > 1 {
		t.Errorf("left in the old cell: %v", left)
	}
	page, err := oldStates.List(ctx, "", 0, 10)
	must(err)
	if len(page.Repos) != 0 {
		t.Errorf("the old cell lists %v", page.Repos)
	}
	other := w
	other.App = "docs"
	if err := watch.NewRegistry(client, here).Receive(ctx, []watch.Watch{other}, in.ArrivesMark()); events.ClassOf(err) != events.ClassBusy {
		t.Errorf("its watches arrive again, after it has been activated: %v", err)
	}

	// It moves back. Then nobody completes the first move again.
	must(newStates.Depart(ctx, client, state.CellMove{Repo: repo, Cell: "eu-1", Epoch: 4}, newLease.Guard(), time.Second))
	must(oldStates.Activate(ctx, state.CellMove{Repo: repo, Cell: "eu-2", Epoch: 4}, oldLease.Guard(), carried, nil, true))
	if err := newStates.Activate(ctx, in, newLease.Guard(), carried, nil, true); events.ClassOf(err) != events.ClassConflict {
		t.Errorf("it is activated again after it has left: %v", err)
	}
	if err := watch.NewRegistry(client, here).Receive(ctx, []watch.Watch{other}, in.ArrivesMark()); events.ClassOf(err) != events.ClassBusy {
		t.Errorf("its watches arrive again after it has left: %v", err)
	}
	must(oldStates.Depart(ctx, client, state.CellMove{Repo: repo, Cell: "eu-2", Epoch: 5}, oldLease.Guard(), time.Second))
	must(newStates.Activate(ctx, state.CellMove{Repo: repo, Cell: "eu-1", Epoch: 5}, newLease.Guard(), carried, nil, true))
}

// TestFormerCellServesUntilAllIsFetched publishes the refs of a repository that has come from another cell, one by one.
func TestFormerCellServesUntilAllIsFetched(t *testing.T) {
	t.Parallel()
	ctx, client := t.Context(), redistest.Start(t).Client()
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	states, key := state.NewStore(client, events.DefaultNamespace), events.DefaultNamespace.Repo(repo)
	isServedBy := func() string {
		t.Helper()
		move, elsewhere, err := states.ServedBy(ctx, repo)
		if err != nil {
			t.Fatal(err)
		}
		if known, err := states.Load(ctx, repo); err != nil || known.IsUnfetched() != elsewhere {
			t.Errorf("served elsewhere: %t, and unfetched: %t (%v)", elsewhere, known.IsUnfetched(), err)
		}
		if !elsewhere {
			return ""
		}
		return move.Cell
	}
	publish := func(ref string) {
		t.Helper()
		parsed, err := events.ParseRef(ref)
		if err != nil {
			t.Fatal(err)
		}
		known, err := states.Load(ctx, repo)
		if err != nil {
			t.Fatal(err)
		}
		client.HSet(ctx, key, "head:"+ref, "c1")
		if fields := known.FetchedFields(parsed); len(fields) > 0 {
			client.HSet(ctx, key, fields)
		}
	}
	came := fmt.Sprintf("eu-1 3 %d", time.Now().UnixMilli())
	given := func(fields ...string) {
		client.Del(ctx, key)
		client.HSet(ctx, key, "from", came)
		for _, field := range fields {
			client.HSet(ctx, key, field, "c1 .")
		}
	}
	want := func(when, cell string, fetched bool) {
		t.Helper()
		if got := isServedBy(); got != cell {
			t.Errorf("%s: served by %q, want %q", when, got, cell)
		}
		if from := client.HGet(ctx, key, "from").Val(); (from == came+" fetched") != fetched {
			t.Errorf("%s: the state says %q", when, from)
		}
	}
	given("given:refs/heads/a:docs", "given:refs/heads/b:docs", "given:refs/heads/byhand:docs", "watched:refs/heads/a", "watched:refs/heads/b")
	want("nothing published", "eu-1", false)
	publish("refs/heads/a")
	want("one of two", "eu-1", false)
	publish("refs/heads/b")
	want("both, but not that which nobody watches", "", true)
	given("given:refs/heads/byhand:docs")
	want("nobody watches any", "eu-1", false)
	publish("refs/heads/byhand")
	want("that was fetched", "", true)
	given("given:refs/heads/a:docs", "watched:refs/heads/a")
	client.HDel(ctx, key, "given:refs/heads/a:docs", "watched:refs/heads/a")
	want("the remote has none any more", "", false)
	came = fmt.Sprintf("eu-1 3 %d", time.Now().Add(-time.Hour).UnixMilli())
	given("given:refs/heads/a:docs", "given:refs/heads/b:docs", "watched:refs/heads/a", "watched:refs/heads/b")
	want("an hour later, nothing published", "eu-1", false)
	client.HSet(ctx, key, "head:refs/heads/a", "c1")
	want("an hour later, one that cannot be published", "", false)
	publish("refs/heads/a")
	want("an hour later, the other one again", "", false)
}

func mainRef(t *testing.T) events.Ref {
	t.Helper()
	ref, err := events.ParseRef("main")
	if err != nil {
		t.Fatal(err)
	}
	return ref
}
