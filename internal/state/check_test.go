package state_test

import (
	"maps"
	"slices"
	"testing"

	"lockstep/events"
	"lockstep/internal/state"
)

func TestChecks(t *testing.T) {
	t.Parallel()
	ref := func(name string) events.Ref {
		r, err := events.ParseRef(name)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	fields := map[string]string{}
	apply := func(set map[string]string, drop []string) {
		maps.Copy(fields, set)
		for _, name := range drop {
			delete(fields, name)
		}
	}
	put := func(c state.Check) { apply(state.RepoOf(fields).CheckFields(ref(c.Ref), &c)) }
	refused := func() []string {
		return state.RepoOf(fields).Summary(state.RepoOf(fields).Synced()).Refused
	}
	put(state.Check{Ref: "refs/heads/main", Commit: "1", Verdicts: []state.Verdict{{Keys: "team", Apps: []string{"docs"}, Verification: events.Verification{Verified: true, By: "Alice"}}}})
	put(state.Check{Ref: "refs/tags/v2", Commit: "2", Class: events.ClassRefused, Told: []string{"docs"}})
	put(state.Check{Ref: "refs/heads/old", Commit: "3", Class: events.ClassRefused})
	if got := refused(); !slices.Equal(got, []string{"refs/heads/old", "refs/tags/v2"}) {
		t.Errorf("refused %q", got)
	}
	all := state.RepoOf(fields).Checks()
	if len(all) != 3 || all[0].Ref != "refs/heads/old" || all[2].Ref != "refs/heads/main" || all[2].Verdicts[0].By != "Alice" {
		t.Errorf("got %+v", all)
	}
	apply(state.RepoOf(fields).KeepRecords(func(r events.Ref) bool { return r != ref("refs/heads/old") }))
	if got := refused(); !slices.Equal(got, []string{"refs/tags/v2"}) {
		t.Errorf("refused %q without a ref that is gone", got)
	}
	put(state.Check{Ref: "refs/tags/v2", Commit: "4"})
	if got := refused(); len(got) != 0 {
		t.Errorf("refused %q after it was verified", got)
	}
	apply(state.RepoOf(fields).CheckFields(ref("refs/heads/main"), nil))
	if _, ok := state.RepoOf(fields).Check(ref("refs/heads/main")); ok {
		t.Error("the check of a ref without rules is kept")
	}
	if set, drop := state.RepoOf(nil).CheckFields(ref("refs/heads/main"), nil); len(set)+len(drop) != 0 {
		t.Errorf("a repository without rules: %v, %v", set, drop)
	}
}
