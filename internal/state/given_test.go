package state

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// TestEarlierCommits delivers commits to an app: those before the last one are remembered, each once, and at most 4. They end with what was delivered.
func TestEarlierCommits(t *testing.T) {
	t.Parallel()
	main := testenv.Must(events.ParseRef("main"))(t)
	repo := Repo{fields: map[string]string{}}
	deliver := func(app string, commits ...string) {
		for _, commit := range commits {
			result := events.Result{App: app, Ref: main, After: commit, Tree: "trees/1-" + commit}
			fields := repo.SyncedFields(result, "")
			maps.Copy(repo.fields, fields)
		}
	}
	deliver("docs", "c1", "c2", "c2", "c3", "c1")
	deliver("scan", "c9")
	if got := repo.Earlier("docs", main); !slices.Equal(got, []string{"c3", "c2"}) {
		t.Errorf("docs: %v", got)
	}
	if got := repo.Earlier("scan", main); len(got) != 0 {
		t.Errorf("scan: %v", got)
	}
	for i := range 20 {
		deliver("docs", fmt.Sprint("d", i))
	}
	if got := repo.Earlier("docs", main); len(got) != 4 || got[0] != "d18" {
		t.Errorf("docs: %v", got)
	}
	for name, fields := range map[string][]string{"ref": repo.FieldsOf(main), "clone": repo.CloneFields(), "app": repo.GivenFields("docs", main)} {
		if !slices.Contains(fields, givenField("docs", main)) {
			t.Errorf("%s: %v lacks the earlier commits", name, fields)
		}
	}
}

// TestReceived has the tree 2-b published, of the commit b, in place of 1-a.
func TestReceived(t *testing.T) {
	t.Parallel()
	main := testenv.Must(events.ParseRef("main"))(t)
	for name, tc := range map[string]struct {
		docs, other string // what was delivered
		want        [3]any // commit, since, uncertain
	}{
		"the published tree":                    {"b 2-b a", "", [3]any{"b", "", false}},
		"nothing":                               {"", "b 2-b", [3]any{"", "", false}},
		"an earlier tree":                       {"a 1-a", "b 2-b", [3]any{"a", "", false}},
		"the same commit, published before":     {"b 1-b", "b 2-b", [3]any{"b", "", false}},
		"the published tree to nobody":          {"a 1-a", "a 1-a", [3]any{"a", "b", true}},
		"one before, the published to nobody":   {"z 0-z", "a 1-a", [3]any{"z", "b", true}},
		"nor the former one":                    {"z 0-z", "z 0-z", [3]any{"z", "", true}},
		"the same commit, the tree to nobody":   {"b 1-b", "a 1-a", [3]any{"b", "b", true}},
		"an earlier tree, and perhaps more":     {"a ~c", "b 2-b", [3]any{"a", "c", true}},
		"perhaps more, the published to nobody": {"a ~c", "a 1-a", [3]any{"a", "~", true}},
		"an earlier tree, and who knows what":   {"a ~", "b 2-b", [3]any{"a", "~", true}},
		"an earlier tree, perhaps":              {"a - c", "b 2-b", [3]any{"", "", false}},
		"a commit without a tree, as from hand": {"a", "", [3]any{"", "", false}},
	} {
		repo := Repo{fields: map[string]string{}}
		for app, value := range map[string]string{"docs": tc.docs, "other": tc.other} {
			if value != "" {
				repo.fields[givenField(app, main)] = value
			}
		}
		base, since, uncertain := repo.Received("docs", main, "b", "2-b", "1-a")
		if got := [3]any{base, since, uncertain}; got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestOthersMayHaveReceivedAnUnknownTree marks what apps have received when a tree is found that none of them was given.
func TestOthersMayHaveReceivedAnUnknownTree(t *testing.T) {
	t.Parallel()
	main := testenv.Must(events.ParseRef("main"))(t)
	docs, scan, missed := givenField("docs", main), givenField("scan", main), givenField("missed", main)
	repo := Repo{fields: map[string]string{docs: "a 1-a z", scan: "a ~b", missed: "a -", "given:refs/heads/dev:docs": "a 1-a"}}
	want := map[string]string{docs: "a ~c z", scan: "a ~"}
	if got := repo.UncertainFields(main, "c", "3-c", "1-a"); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	want[docs] = "a ~ z"
	if got := repo.UncertainFields(main, "c", "3-c", "2-b"); !maps.Equal(got, want) {
		t.Errorf("in place of a tree that was given to nobody either: %v, want %v", got, want)
	}
	if got := repo.UncertainFields(main, "a", "1-a", ""); len(got) != 0 {
		t.Errorf("of a tree that was given: %v", got)
	}
}

// TestRepublish moves a repository: only those at the published commit have its tree at the new place.
func TestRepublish(t *testing.T) {
	t.Parallel()
	main := testenv.Must(events.ParseRef("main"))(t)
	at, behind, unsure, missed := givenField("at", main), givenField("behind", main), givenField("unsure", main), givenField("missed", main)
	fields := map[string]string{at: "b 2-b a", behind: "a 1-a", unsure: "b ~a", missed: "b -", "head:refs/heads/main": "b"}
	want := maps.Clone(fields)
	want[at] = "b 9-b a"
	if Republish(fields, map[events.Ref]string{main: "b"}, map[events.Ref]string{main: "9-b"}); !maps.Equal(fields, want) {
		t.Errorf("%v, want %v", fields, want)
	}
}
