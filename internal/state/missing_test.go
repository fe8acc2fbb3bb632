package state_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/state"
)

// TestMissingSubmodulesOfRefs follows two refs whose trees lack submodules, until they have them or are gone.
func TestMissingSubmodulesOfRefs(t *testing.T) {
	t.Parallel()
	fields := map[string]string{"other": "kept"}
	apply := func(set map[string]string, drop []string) {
		maps.Copy(fields, set)
		for _, name := range drop {
			delete(fields, name)
		}
	}
	sync := func(ref string, missing ...events.MissingSubmodule) {
		t.Helper()
		name, err := events.ParseRef(ref)
		if err != nil {
			t.Fatal(err)
		}
		apply(state.RepoOf(fields).MissingFields(events.Result{Ref: name, After: "abc", Time: time.Unix(1, 0), Missing: missing}))
	}
	want := func(refs ...string) {
		t.Helper()
		known := state.RepoOf(fields)
		var got []string
		for _, m := range known.Missing() {
			got = append(got, m.Ref)
		}
		if listed := known.Summary(time.Now()).Missing; !slices.Equal(got, refs) || !slices.Equal(listed, refs) {
			t.Errorf("details of %q, and a list of %q, want %q", got, listed, refs)
		}
	}
	one := events.MissingSubmodule{Path: "sub", Class: events.ClassAuth, Error: strings.Repeat("é", 1000)}
	sync("main")
	want()
	sync("main", one)
	want("refs/heads/main")
	sync("dev", slices.Repeat([]events.MissingSubmodule{one}, 30)...)
	want("refs/heads/dev", "refs/heads/main")
	m := state.RepoOf(fields).Missing()[0]
	if m.Count != 30 || len(m.First) != 10 || len(m.First[0].Error) > 500 || !strings.HasSuffix(m.First[0].Error, "é…") || m.First[0].Path != "sub" || m.Commit != "abc" || !m.At.Equal(time.Unix(1, 0)) {
		t.Errorf("%+v", m)
	}
	sync("main")
	want("refs/heads/dev")
	sync("main", one)
	apply(state.RepoOf(fields).KeepRecords(func(ref events.Ref) bool { return ref.String() == "refs/heads/main" }))
	want("refs/heads/main")
	sync("main")
	want()
	if len(fields) != 2 || fields["other"] != "kept" || fields["missing"] != "" {
		t.Errorf("fields %q", fields)
	}
}
