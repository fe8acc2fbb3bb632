package state_test

import (
	"context"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
)

func TestWhatASyncSetsTheNextOneLoads(t *testing.T) {
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
	fields := state.SyncedFields(events.Result{Repo: repo, Ref: ref, App: "docs", After: "abc", Fence: 7, Time: at}, "https://example.com/Acme/Widgets")
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
	if known.Spelled() != "Acme/Widgets" || known.Fence() != 7 || !known.Synced().Equal(at) {
		t.Errorf("%s, fence %d, synced %v", known.Spelled(), known.Fence(), known.Synced())
	}
	if known.Buried("1-0") {
		t.Error("buried without a tombstone")
	}
}

func TestATombstoneBuriesWhatIsOlder(t *testing.T) {
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
	for entry, buried := range map[string]bool{"9-4": true, "9-5": true, "9-6": false, "10-0": false, "8-99": true, "no id": false} {
		if known.Buried(entry) != buried {
			t.Errorf("entry %s: buried %v, want %v", entry, !buried, buried)
		}
	}
}
