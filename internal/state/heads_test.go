package state_test

import (
	"maps"
	"testing"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
)

func TestManyHeads(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	for key, fields := range map[string][]any{
		"lockstep:{0}:repo:acme/widgets": {"repo", "Acme/Widgets", "head:refs/heads/main", "c1", "head:refs/tags/v1", "c2", "given:refs/heads/main:docs", "c1"},
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
	heads, err := store.ManyHeads(t.Context(), []string{"acme/odd", "no path", "Acme/Widgets", "acme/unknown", "acme/empty"})
	if err != nil || len(heads) != 5 {
		t.Fatalf("%v, %v", heads, err)
	}
	if want := map[string]string{"refs/heads/main": "c1", "refs/tags/v1": "c2"}; !maps.Equal(heads[2], want) {
		t.Errorf("heads %v, want %v", heads[2], want)
	}
	for i, byRef := range heads {
		if i != 2 && len(byRef) != 0 {
			t.Errorf("%d has heads %v, want none", i, byRef)
		}
	}
	if none, err := store.ManyHeads(t.Context(), nil); err != nil || len(none) != 0 {
		t.Errorf("heads of no repositories: %v, %v", none, err)
	}
}
