package watch_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// TestNamesOfWatches has branches and tags that have changed one after the other.
func TestNamesOfWatches(t *testing.T) {
	t.Parallel()
	ref := func(name string) events.Ref { return testenv.Must(events.ParseRef(name))(t) }
	const commit = "0123456789012345678901234567890123456789"
	remote := []string{"main", "dev", "next", "refs/tags/v1.9", "refs/tags/v1.10"}
	for name, tc := range map[string]struct {
		watches []string // each with its limit
		main    string
		want    string // kept by all, then the ref of the plain name
	}{
		"the default branch":                     {[]string{" 0"}, "main", "main; main"},
		"no default branch":                      {[]string{" 0"}, "", "; "},
		"a default branch that nobody watches":   {[]string{"dev 0"}, "main", "dev; "},
		"one that is watched by its name":        {[]string{"main 0"}, "main", "main; main"},
		"one that a pattern keeps":               {[]string{"refs/heads/* 1"}, "next", "next; next"},
		"one that a pattern leaves out":          {[]string{"refs/heads/* 1"}, "main", "next; "},
		"a branch that the remote lacks":         {[]string{"gone 0", " 0"}, "dev", "dev; dev"},
		"a commit":                               {[]string{commit + " 0"}, "main", commit + "; "},
		"the branches that changed last":         {[]string{"refs/heads/* 2"}, "", "dev next; "},
		"the last tags by version":               {[]string{"refs/tags/* 1"}, "", "refs/tags/v1.10; "},
		"two patterns, each up to its own limit": {[]string{"refs/heads/d* 1", "refs/heads/[mn]* 1"}, "", "dev next; "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changed := map[events.Ref]time.Time{}
			for n, one := range remote {
				changed[ref(one)] = time.Unix(int64(n), 0)
			}
			offer := watch.OfferOf(events.Ref{}, changed)
			if tc.main != "" {
				offer.Default = ref(tc.main)
			}
			has := offer.Has
			offer.Has = func(one events.Ref) bool { return one.Commit() != "" || has(one) }
			var watches []watch.Watch
			for _, text := range tc.watches {
				selector, limit, _ := strings.Cut(text, " ")
				w := watch.Watch{App: "docs", Ref: testenv.Must(watch.ParseSelector(selector))(t)}
				_ = testenv.Must(fmt.Sscan(limit, &w.MaxRefs))(t)
				watches = append(watches, w)
			}
			names := watch.NamesOf(watches, offer)
			var kept []string
			for one := range names.Wanted {
				kept = append(kept, strings.TrimPrefix(one.String(), "refs/heads/"))
			}
			slices.Sort(kept)
			if got := strings.Join(kept, " ") + "; " + strings.TrimPrefix(names.Plain.String(), "refs/heads/"); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
