package handlers_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/ext/submodules"
	"lockstep/internal/ext/views"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// TestSyncCoversOtherApps checks which changes of other apps a sync for docs settles, and that each app gets what its own sync would
// have returned.
func TestSyncCoversOtherApps(t *testing.T) {
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	for _, app := range []string{"docs", "search", "viewing", "modules", "unusable", "denied", "repeated"} {
		of := watch.Watch{App: app, URL: url}
		switch app {
		case "viewing":
			of.Options = watch.With(views.Options{Views: viewSet(t, map[string][]string{"all": {"a"}})})
		case "modules", "unusable":
			of.Options = watch.With(submodules.Options{Mode: events.SubmodulesBestEffort, Credentials: []string{app}})
			w.credential(app, "x", "libs")
		}
		w.watchAs(of, "")
		w.latest = "1-0"
		w.mustHandle("1-0", events.Change{URL: url, App: app, Watched: true})
	}
	w.watch("late", "")
	w.deny("denied", "")
	delete(w.env, "LOCKSTEP_CREDENTIAL_UNUSABLE_URLS")
	key, main := events.DefaultNamespace.Repo(w.repo()), mustRef("refs/heads/main")
	w.redis.HSet(context.Background(), key, "given:refs/heads/main:repeated", first+" -")
	second := w.push(map[string]string{"b": "2"})
	w.latest = "8-0"
	outcome := testenv.Must(w.outcome("2-0", events.Change{URL: url, App: "docs", After: second, Watched: true}))(t)
	for name, tc := range map[string]struct {
		entry  string
		change events.Change
		want   bool
	}{
		"one at the same commit":                 {"3-0", events.Change{App: "search", After: second}, true},
		"one that was never given a commit":      {"3-0", events.Change{App: "late"}, false},
		"one whose result may be lost":           {"3-0", events.Change{App: "repeated"}, false},
		"one that no longer watches":             {"3-0", events.Change{App: "gone"}, false},
		"one with views":                         {"3-0", events.Change{App: "viewing"}, false},
		"one with credentials for submodules":    {"3-0", events.Change{App: "modules"}, true},
		"one with a credential without URLs":     {"3-0", events.Change{App: "unusable"}, false},
		"one whose credential was refused":       {"3-0", events.Change{App: "denied"}, false},
		"another credential":                     {"3-0", events.Change{App: "search", Credential: "other"}, false},
		"a URL that is not the operator's":       {"3-0", events.Change{App: "search", Foreign: true}, false},
		"one that was queued after the question": {"9-0", events.Change{App: "search"}, false},
		"one announcing what the remote has not": {"7-0", events.Change{App: "search", After: absent}, false},
		"a deeper one":                           {"3-0", events.Change{App: "search", Depth: 5}, false},
	} {
		tc.change.URL, tc.change.Repo, tc.change.Watched = url, w.repo(), true
		job := w.job(tc.entry, tc.change)
		covered, ok := outcome.Covers(context.Background(), job)
		if ok != tc.want {
			t.Errorf("%s: covered %v, want %v", name, ok, tc.want)
			continue
		}
		if !ok {
			continue
		}
		own := testenv.Must(w.outcome(tc.entry, tc.change))(t)
		got, want := covered.Result, own.Result
		if got.App != tc.change.App || got.Before != first || got.After != second || len(got.Files) != 1 || !slices.Equal(got.Files, want.Files) ||
			got.Before != want.Before || got.Tree != want.Tree || got.Path != want.Path || got.Ref != want.Ref || got.Until != "8-0" {
			t.Errorf("%s: result %+v\nwant %+v", name, got, want)
		}
		settled := maps.Clone(outcome.State) // in Redis, once the sync and the covered change are
		maps.Copy(settled, covered.State)
		for field, value := range own.State {
			if field == "synced" || field == "fence" || field == "answered" || strings.HasPrefix(field, "given:") && !strings.HasSuffix(field, ":"+tc.change.App) {
				continue // what the other apps have depends on whether the sync is settled
			}
			if settled[field] != value {
				t.Errorf("%s: state %s is %q, want %q", name, field, settled[field], value)
			}
		}
		if given := covered.State["given:"+main.String()+":"+tc.change.App]; !strings.HasPrefix(given, second+" ") {
			t.Errorf("%s: state %v does not record that the app received the commit", name, covered.State)
		}
		// The next change of that app has nothing new, once this one is settled.
		next := w.job("4-0", tc.change)
		if _, ok := outcome.Covers(context.Background(), next); ok {
			t.Error("a second change was covered before the first one was settled")
		}
		covered.Settled()
		again, ok := outcome.Covers(context.Background(), next)
		if !ok || again.Result.Before != second || len(again.Result.Files) != 0 || again.State["given:"+main.String()+":"+tc.change.App] != "" {
			t.Errorf("the second change: covered %v, result %+v, state %v; want a result without changes", ok, again.Result, again.State)
		}
	}
}

// TestAddedAppsAreCoveredTogether covers the first syncs of apps, which list all files.
func TestAddedAppsAreCoveredTogether(t *testing.T) {
	w := newWorld(t)
	head := w.create(map[string]string{"a": "1", "b": "2"})
	url := w.git.URL("acme/widgets")
	w.watch("docs", "")
	w.watch("search", "")
	w.latest = "8-0"
	outcome := testenv.Must(w.outcome("1-0", events.Change{URL: url, App: "docs", Watched: true}))(t)
	covered, ok := outcome.Covers(context.Background(), w.job("2-0", events.Change{Repo: w.repo(), URL: url, App: "search", Watched: true}))
	if r := covered.Result; !ok || r.App != "search" || r.Before != "" || r.After != head || len(r.Files) != 2 {
		t.Errorf("covered %v: %+v; want all files", ok, r)
	}
}

// TestWatchesAreReadAfterTheLastEntry writes a watch once the last entry is known: the change that the write has queued must not be
// covered by a sync that does not know the watch.
func TestWatchesAreReadAfterTheLastEntry(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.watch("docs", "")
	job := w.job("1-0", events.Change{URL: url, App: "docs", Watched: true})
	job.Latest = "2-0"
	w.watch("search", "")
	outcome := testenv.Must(w.try(job))(t)
	if _, ok := outcome.Covers(context.Background(), w.job("2-0", events.Change{Repo: w.repo(), URL: url, App: "search", Watched: true})); !ok {
		t.Error("the sync does not know a watch that was written before the last entry was read")
	}
}
