package handlers_test

import (
	"context"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/watch"
)

// TestAnotherDefaultBranchConcernsAllApps has one app's sync find out that the default branch has changed: the others have no change of
// their own waiting, and each gets a result that says what is published for it now.
func TestAnotherDefaultBranchConcernsAllApps(t *testing.T) {
	for name, tc := range map[string]struct {
		watches []string // of the app search
		by      string   // ref of the change that finds out, of the app docs
		want    string
		results map[string]string // ref to base, of the results for search
	}{
		"the default branch":                      {[]string{""}, "", "pushed search", map[string]string{"refs/heads/next": ""}},
		"found by a sync of the branch":           {[]string{""}, "next", "pushed search", map[string]string{"refs/heads/next": ""}},
		"the former one by its name":              {[]string{"main"}, "", "pushed search refs/heads/main", map[string]string{"refs/heads/main": ""}},
		"the default branch and the new one":      {[]string{"", "next"}, "", "pushed search, pushed search refs/heads/next", map[string]string{"refs/heads/next": ""}},
		"all branches, and the default one twice": {[]string{"", "refs/heads/*"}, "", "pushed search, pushed search refs/heads/main, pushed search refs/heads/next", map[string]string{"refs/heads/next": "", "refs/heads/main": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ctx := context.Background()
			first := w.create(map[string]string{"a": "1"})
			must(t, w.git.SetRef(ctx, "acme/widgets", "refs/heads/next", first))
			_, err := w.git.Commit(ctx, "acme/widgets", "next", gitserver.Edit{Write: map[string]string{"b": "2"}})
			must(t, err)
			w.watch("docs", "")
			for _, selector := range tc.watches {
				w.watch("search", selector)
			}
			w.due("a-0")

			must(t, w.git.SetHead("acme/widgets", "next"))
			change := events.Change{URL: w.git.URL("acme/widgets"), App: "docs"}
			if tc.by != "" {
				change.Ref = mustRef(tc.by)
			}
			r := w.mustHandle("b-0", change)
			if r.Before != "" && tc.by == "" || r.Unchanged() || len(r.Files) != 2 || !r.IsDefault() {
				t.Errorf("the sync that finds out: %+v", r)
			}
			if got := requested(w.next); got != "due" {
				t.Fatalf("it requested %q, want a poll", got)
			}
			poll := w.next[0]
			w.mustHandle("c-0", poll)
			due := w.next
			if got := requested(due); got != tc.want {
				t.Errorf("the poll requested %q, want %q", got, tc.want)
			}
			notable := map[string]string{}
			for i, change := range due {
				r := w.mustHandle("d-"+string(rune('0'+i)), change)
				if change.App == "search" && watch.Notable(r) {
					notable[r.Ref.String()] = r.Before
				}
				if change.App == "search" && change.Ref.IsZero() && !watch.Notable(r) {
					t.Errorf("no news for search: %+v", r)
				}
				if len(w.next) > 0 {
					t.Errorf("a further poll: %v", requested(w.next))
				}
			}
			for ref, base := range tc.results {
				if got, ok := notable[ref]; !ok || got != base {
					t.Errorf("the results for search are %v, want one of %s from %q", notable, ref, base)
				}
			}
			if got := requested(w.due("e-0")); got != "" {
				t.Errorf("the next poll requested %q", got)
			}
		})
	}
}

// TestDefaultBranchOfOneApp requests nothing if no other app is concerned.
func TestDefaultBranchOfOneApp(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.watch("docs", "")
	change := events.Change{URL: w.git.URL("acme/widgets"), App: "docs"}
	w.mustHandle("1-0", change)
	must(t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/next", first))
	must(t, w.git.SetHead("acme/widgets", "next"))
	if r := w.mustHandle("2-0", change); r.Before != "" || r.Ref != mustRef("next") || len(w.next) != 0 {
		t.Errorf("%+v, requested %q", r, requested(w.next))
	}
}

// TestGivenOfGoneAppGoesWithThePlainName has an app without a watch any more among those that the poll gives the former
// default branch again.
func TestGivenOfGoneAppGoesWithThePlainName(t *testing.T) {
	w := newWorld(t)
	w.branch(w.create(map[string]string{"a": "1"}), "next")
	w.watch("docs", "")
	w.watch("search", "main")
	scan := w.watch("scan", "main")
	w.due("a-0")
	must(t, w.git.SetHead("acme/widgets", "next"))
	w.mustHandle("b-0", events.Change{URL: w.git.URL("acme/widgets"), App: "docs"})
	w.unwatch(scan)
	w.mustHandle("c-0", w.next[0])
	fields, _ := w.stored()
	if given := fields["given:refs/heads/main:scan"]; given != "" {
		t.Errorf("the state has %q of an app without a watch", given)
	}
	if given := fields["given:refs/heads/main:search"]; !strings.HasSuffix(given, " -") {
		t.Errorf("the state has %q of an app with a watch, want it given again", given)
	}
}
