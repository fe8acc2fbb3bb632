package state_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/locking"
)

// record stores a trouble of a repository under a fence.
func record(t *testing.T, store *state.Store, repo string, fence uint64, trouble state.Trouble) {
	t.Helper()
	path := testenv.Must(events.ParseRepoPath(repo))(t)
	known := testenv.Must(store.Load(context.Background(), path))(t)
	if err := store.Record(context.Background(), known, path, fence, trouble); err != nil {
		t.Fatal(err)
	}
}

func TestStaleHolderRecordsNothing(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	store := state.NewStore(client, events.DefaultNamespace)
	locker := testenv.Must(locking.New(locking.Config{Redis: client, Prefix: events.DefaultNamespace.Locks(), Worker: "w1"}))(t)
	t.Cleanup(func() { _ = locker.Close(ctx) })
	lease := func() *locking.Lease {
		return testenv.Must(locker.Acquire(ctx, locking.Request{Key: "acme/widgets"}))(t)
	}
	stale := lease()
	if err := stale.Release(ctx); err != nil {
		t.Fatal(err)
	}
	record(t, store, "Acme/Widgets", stale.Fence(), state.Trouble{Scope: events.ScopeRepo, Failures: 1, At: time.Now()})
	current := lease()
	defer func() { _ = current.Release(ctx) }()
	for _, fence := range []uint64{stale.Fence(), 0} {
		record(t, store, "Acme/Widgets", fence, state.Trouble{Scope: events.ScopeRepo, Failures: 2, At: time.Now()})
	}
	known := testenv.Must(store.Load(ctx, testenv.Must(events.ParseRepoPath("acme/widgets"))(t)))(t)
	if c := known.CircuitAt(time.Now()); c.Failures != 1 {
		t.Errorf("%+v, want only the failure without a newer lease recorded", c)
	}
	if known.Path() != "" {
		t.Errorf("path %q of a repository that never synced", known.Path())
	}
}

func TestFailuresOfARepositoryThatNeverSynced(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	store, now := state.NewStore(client, events.DefaultNamespace), time.Now().UTC().Truncate(time.Millisecond)
	client.HSet(ctx, events.DefaultNamespace.Locks()+"acme/widgets", "fence", 7)
	next := now.Add(time.Minute)
	for i := range 20 {
		record(t, store, "Acme/Widgets", 7, state.Trouble{
			App: "docs", Ref: fmt.Sprint("refs/heads/", i), Operation: "sync", Class: events.ClassNoRef, Error: strings.Repeat("é", 500),
			Attempts: 3, Job: "c1", At: now.Add(time.Duration(i-20) * time.Second),
		})
	}
	record(t, store, "Acme/Widgets", 7, state.Trouble{Scope: events.ScopeRepo, Operation: "poll", Class: events.ClassNetwork, At: now, Next: &next, Until: &next})

	page, err := store.List(ctx, "", 0, 10)
	if err != nil || len(page.Repos) != 1 || page.Repos[0].Repo != "Acme/Widgets" || len(page.Repos[0].Failing) != 17 {
		t.Fatalf("%+v, %v; want Acme/Widgets with the newest 16 failures of changes, and its own", page, err)
	}
	newest, older := page.Repos[0].Failing[0], page.Repos[0].Failing[1]
	if !newest.At.Equal(now) || !newest.Next.Equal(next) || older.Next != nil || older.Ref != "refs/heads/19" || older.Attempts != 3 || older.Job != "c1" {
		t.Errorf("%+v and %+v", newest, older)
	}
	if len(older.Error) > 300 || !strings.HasSuffix(older.Error, "é…") {
		t.Errorf("%d bytes: %s", len(older.Error), older.Error)
	}
	failing, err := store.Failing(ctx, 2)
	if err != nil || failing.Total != 1 || len(failing.Repos) != 1 || failing.Repos[0].Repo != "Acme/Widgets" {
		t.Errorf("%+v, %v", failing, err)
	}
}

func TestFailingListsTheNewestAndForgetsOldOnes(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	store, now := state.NewStore(client, events.DefaultNamespace), time.Now()
	for i, age := range []time.Duration{40 * 24 * time.Hour, 3 * time.Hour, time.Hour, 2 * time.Hour} {
		name := fmt.Sprint("acme/r", i)
		client.HSet(ctx, events.DefaultNamespace.Locks()+name, "fence", 7)
		record(t, store, name, 7, state.Trouble{Scope: events.ScopeRepo, At: now.Add(-age)})
	}
	failing := testenv.Must(store.Failing(ctx, 2))(t)
	var names []string
	for _, r := range failing.Repos {
		names = append(names, r.Repo)
	}
	if failing.Total != 3 || !slices.Equal(names, []string{"acme/r2", "acme/r3"}) {
		t.Errorf("%d fail, first %q", failing.Total, names)
	}
	if client.HExists(ctx, events.DefaultNamespace.Failing(), "acme/r0").Val() {
		t.Error("the failure of long ago is still listed")
	}
	if page := testenv.Must(store.List(ctx, "acme/r0", 0, 10))(t); len(page.Repos) != 1 || len(page.Repos[0].Failing) != 0 {
		t.Errorf("%+v, want it without its old failure", page.Repos)
	}
}

// TestRefusedCredentialsMoveAndAreRestored has another trouble at the destination.
func TestRefusedCredentialsMoveAndAreRestored(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	store, now := state.NewStore(client, events.DefaultNamespace), time.Now()
	widgets := testenv.Must(events.ParseRepoPath("acme/widgets"))(t)
	for _, name := range []string{"acme/widgets", "acme/gadgets"} {
		client.HSet(ctx, events.DefaultNamespace.Locks()+name, "fence", 7)
	}
	client.HSet(ctx, events.DefaultNamespace.Repo(widgets), "given:refs/heads/main:docs", "c1")
	refusal := state.Trouble{Scope: events.ScopeCredential, App: "docs", Credential: "one", Failures: 1, At: now, Since: now}
	record(t, store, "acme/widgets", 7, refusal)
	refusal.Credential, refusal.Next = "two", &now // not confirmed yet
	record(t, store, "acme/widgets", 7, refusal)
	record(t, store, "acme/widgets", 7, state.Trouble{Ref: "refs/heads/main", At: now})
	record(t, store, "acme/gadgets", 7, state.Trouble{Scope: events.ScopeRepo, Failures: 3, At: now})
	gadgets := testenv.Must(events.ParseRepoPath("acme/gadgets"))(t)
	from, there := testenv.Must(store.Load(ctx, widgets))(t), testenv.Must(store.Load(ctx, gadgets))(t)
	check := func(how string, known state.Repo) {
		t.Helper()
		failing, _ := known.Failing()
		if len(failing) != 3 || !known.Denied("docs", "one") || known.Denied("docs", "two") || known.CircuitAt(now).Failures != 3 {
			t.Errorf("%s: %+v", how, failing)
		}
		refusal.At, refusal.Next = now.Add(6*time.Minute), nil
		if again := known.Refuse(refusal); again.Failures != 2 || !again.Since.Equal(now) || again.Next != nil {
			t.Errorf("%s: the next refusal is %+v, want it confirmed", how, again)
		}
	}
	check("moved", state.RepoOf(from.MovedFields(there, gadgets, "https://example.com/acme/gadgets", 8)))
	if added, err := store.Restore(ctx, gadgets, from.Exported()); !added || err != nil {
		t.Fatal(added, err)
	}
	restored := testenv.Must(store.Load(ctx, gadgets))(t)
	check("restored", restored)
	if !restored.HasGiven("docs") {
		t.Error("what was given is not restored")
	}
	if added, err := store.Restore(ctx, gadgets, from.Exported()); added || err != nil {
		t.Errorf("again: %v, %v; want the clone left as it is", added, err)
	}
}
