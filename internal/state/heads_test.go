package state_test

import (
	"maps"
	"testing"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
)

func TestLoadHeads(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	for key, fields := range map[string][]any{
		"lockstep:{0}:repo:acme/widgets": {"repo", "Acme/Widgets", "head:refs/heads/main", "c1", "head:refs/tags/v1", "c2", "default", "refs/heads/main", "given:refs/heads/main:docs", "c1"},
		"lockstep:{0}:repo:acme/empty":   {"fence", "1"},
	} {
		if err := client.HSet(t.Context(), key, fields...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.Set(t.Context(), "lockstep:{0}:repo:acme/odd", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	store := state.NewStore(client, events.DefaultNamespace)
	heads, err := store.LoadHeads(t.Context(), []string{"acme/odd", "no path", "Acme/Widgets", "acme/unknown", "acme/empty"})
	if err != nil || len(heads) != 5 {
		t.Fatalf("%v, %v", heads, err)
	}
	if want := map[string]string{"refs/heads/main": "c1", "refs/tags/v1": "c2"}; !maps.Equal(heads[2].Heads(), want) || heads[2].Default() != "refs/heads/main" {
		t.Errorf("heads %v of %s, want %v", heads[2].Heads(), heads[2].Default(), want)
	}
	for i, known := range heads {
		if i != 2 && !known.IsZero() {
			t.Errorf("%d has heads %v, want none", i, known.Heads())
		}
	}
	if none, err := store.LoadHeads(t.Context(), nil); err != nil || len(none) != 0 {
		t.Errorf("heads of no repositories: %v, %v", none, err)
	}
}
