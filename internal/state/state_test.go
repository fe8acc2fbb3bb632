package state_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
)

func TestSyncedFieldsAreLoaded(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	repo, err := events.ParseRepoPath("Acme/Widgets")
	if err != nil {
		t.Fatal(err)
	}
	ref, err := events.ParseRef("main")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 21, 1, 2, 3, 4, time.UTC)
	fields := state.Repo{}.SyncedFields(events.Result{Repo: repo, Ref: ref, App: "docs", After: "abc", Fence: 7, Time: at}, "https://example.com/Acme/Widgets")
	if err := client.HSet(ctx, events.DefaultNamespace.Repo(repo), fields).Err(); err != nil {
		t.Fatal(err)
	}
	known, err := state.NewStore(client, events.DefaultNamespace).Load(ctx, repo)
	if err != nil {
		t.Fatal(err)
	}
	if known.Given("docs", ref) != "abc" || known.Given("search", ref) != "" || known.Heads()["refs/heads/main"] != "abc" {
		t.Errorf("given %q and %q, heads %v", known.Given("docs", ref), known.Given("search", ref), known.Heads())
	}
	if known.Path() != "Acme/Widgets" || known.Fence() != 7 || !known.Synced().Equal(at) {
		t.Errorf("%s, fence %d, synced %v", known.Path(), known.Fence(), known.Synced())
	}
	if known.RemovedSince("1-0") {
		t.Error("removed without a tombstone")
	}
}

func TestTombstoneObsoletesOlderEntries(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	fields := state.RemovedFields(events.Result{Repo: repo}, "9-5")
	if err := client.HSet(ctx, events.DefaultNamespace.Repo(repo), fields).Err(); err != nil {
		t.Fatal(err)
	}
	known, err := state.NewStore(client, events.DefaultNamespace).Load(ctx, repo)
	if err != nil {
		t.Fatal(err)
	}
	for entry, want := range map[string]bool{"9-4": true, "9-5": true, "9-6": false, "10-0": false, "8-99": true, "no id": false} {
		if known.RemovedSince(entry) != want {
			t.Errorf("entry %s: removed since %v, want %v", entry, !want, want)
		}
	}
}

func TestFieldsOfAMovedRepository(t *testing.T) {
	t.Parallel()
	ctx, client := context.Background(), redistest.Start(t).Client()
	widgets, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	gadgets, err := events.ParseRepoPath("acme/gadgets")
	if err != nil {
		t.Fatal(err)
	}
	main, err := events.ParseRef("main")
	if err != nil {
		t.Fatal(err)
	}
	store := state.NewStore(client, events.DefaultNamespace)
	write := func(at events.RepoPath, fields map[string]string) {
		t.Helper()
		if err := client.HSet(ctx, events.DefaultNamespace.Repo(at), fields).Err(); err != nil {
			t.Fatal(err)
		}
	}
	synced := events.Result{Type: events.ResultSynced, Repo: widgets, Ref: main, App: "docs", After: "c1", Tree: "trees/7-c1", Fence: 7, Time: time.Now()}
	fields := state.Repo{}.SyncedFields(synced, "https://example.com/acme/widgets")
	write(widgets, fields)
	write(widgets, state.RemoteRefFields(main, "bot", state.RemoteRef{Ref: main, Commit: "c1"}))
	known, err := store.Load(ctx, widgets)
	if err != nil {
		t.Fatal(err)
	}
	moved := known.MovedFields(state.Repo{}, gadgets, "https://example.com/acme/gadgets", 8)
	want := map[string]string{"repo": "acme/gadgets", "url": "https://example.com/acme/gadgets",
		"fence": "8", "synced": moved["synced"], "head:refs/heads/main": "c1", "default": "refs/heads/main", "given:refs/heads/main:docs": "c1 7-c1"}
	if !maps.Equal(moved, want) || moved["synced"] == "" {
		t.Errorf("%v, want %v", moved, want)
	}
}

func TestMovesAreRemembered(t *testing.T) {
	at := func(n int) (events.RepoPath, string) {
		repo, err := events.ParseRepoPath(fmt.Sprint("acme/to", n))
		if err != nil {
			t.Fatal(err)
		}
		return repo, fmt.Sprintf("https://example.com/acme/to%d.git", n)
	}
	known := state.Repo{}
	for n := range 20 {
		to, url := at(n)
		known = state.RepoOf(known.MovesAfter(to, url, fmt.Sprint(n+1, "-0")))
	}
	for n := range 20 {
		to, url := at(n)
		if known.MovedTo(to, url) != (n >= 4) {
			t.Errorf("move %d of 20: remembered %v, want the newest 16", n, n < 4)
		}
		if known.MovedTo(to, "https://example.com/acme/another.git") {
			t.Errorf("move %d: to another remote", n)
		}
	}
	back, url := at(19)
	fields := known.Moves()
	maps.Copy(fields, known.MovedHereFields(back))
	if returned := state.RepoOf(fields); returned.MovedTo(back, url) || len(returned.Moves()) != 15 {
		t.Errorf("after the repository came back: %v", returned.Moves())
	}
}

// TestSource finds the credential with which a ref was requested, unless there are several.
func TestSource(t *testing.T) {
	t.Parallel()
	main, err := events.ParseRef("refs/heads/main")
	if err != nil {
		t.Fatal(err)
	}
	known := func(fields map[string]string) state.Repo { return state.RepoOf(fields) }
	answer := "7-1 refs/heads/main " + strings.Repeat("a", 40) + " https://example.com/acme/with space.git"
	for name, tc := range map[string]struct {
		fields     map[string]string
		credential string
		ok         bool
	}{
		"never":           {map[string]string{"given:refs/heads/main:docs": "x"}, "", false},
		"anonymously":     {map[string]string{"asked:refs/heads/main:": answer, "asked::": answer}, "", true},
		"by a credential": {map[string]string{"asked:refs/heads/main:two": answer, "asked:refs/heads/main2:one": answer}, "two", true},
		"by two":          {map[string]string{"asked:refs/heads/main:two": answer, "asked:refs/heads/main:": answer}, "", false},
		"damaged":         {map[string]string{"asked:refs/heads/main:two": "7-1"}, "", false},
	} {
		credential, got, ok := known(tc.fields).Source(main)
		if ok != tc.ok || ok && (credential != tc.credential || got.URL != "https://example.com/acme/with space.git" || got.Ref != main) {
			t.Errorf("%s: %q, %+v, %v", name, credential, got, ok)
		}
	}
}
