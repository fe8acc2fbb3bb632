package handlers_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// history creates acme/widgets with commits that are sent by their hash, the last of them on main.
func (w *world) history(n int) (commits []string) {
	w.t.Helper()
	commits = append(commits, w.create(map[string]string{"a": "0"}))
	for i := 1; i < n; i++ {
		commits = append(commits, w.push(map[string]string{"a": fmt.Sprint(i)}))
	}
	_, err := w.git.Git(context.Background(), "acme/widgets", "", "config", "uploadpack.allowReachableSHA1InWant", "true")
	must(w.t, err)
	return commits
}

func TestCommitIsFetchedOnceForEachCredential(t *testing.T) {
	w := newWorld(t)
	commits := w.history(3)
	first, url := commits[0], w.git.URL("acme/widgets")
	change := events.Change{URL: url, App: "docs", Ref: mustRef(first)}
	w.latest = "1-0"
	for i, step := range []struct {
		what   string
		entry  string
		change events.Change
		asks   int
	}{
		{"the first sync", "1-0", change, 1},
		{"a later one", "9-0", change, 0},
		{"another app", "9-1", events.Change{URL: url, App: "search", Ref: mustRef(first)}, 0},
		{"another credential", "9-2", events.Change{URL: url, App: "docs", Ref: mustRef(first), Credential: "ci"}, 1},
		{"that credential again", "9-3", events.Change{URL: url, App: "docs", Ref: mustRef(first), Credential: "ci"}, 0},
		{"another commit", "9-4", events.Change{URL: url, App: "docs", Ref: mustRef(commits[1])}, 1},
	} {
		w.env["LOCKSTEP_CREDENTIAL_CI_PASSWORD"], w.env["LOCKSTEP_CREDENTIAL_CI_URLS"] = "s3cret", url
		n := w.asked(func() {
			r := w.mustHandle(step.entry, step.change)
			if r.After != step.change.Ref.Commit() || r.Ref != step.change.Ref || r.Path != "acme/widgets@"+r.After || r.Tree == "" {
				t.Errorf("%s: %+v", step.what, r)
			}
			if i == 1 && r.Before != first {
				t.Errorf("%s: before %q", step.what, r.Before)
			}
		})
		if n != step.asks {
			t.Errorf("%s: the remote was asked %d times, want %d", step.what, n, step.asks)
		}
	}
}

func TestPinnedCommitIsNoAnswerAboutItsRef(t *testing.T) {
	w := newWorld(t)
	commits := w.history(3)
	url, tip := w.git.URL("acme/widgets"), commits[2]
	w.latest = "5-0"
	w.mustHandle("1-0", events.Change{URL: url})
	pin := events.Change{URL: url, After: commits[0], Pin: true}
	back := w.mustHandle("2-0", pin)
	if back.Ref.String() != "refs/heads/main" || back.Before != tip || back.After != commits[0] || back.Path != "acme/widgets" || back.Until != "" {
		t.Errorf("pinned: %+v", back)
	}
	if r := w.mustHandle("3-0", pin); r.Before != commits[0] || r.After != commits[0] || len(r.Files) != 0 {
		t.Errorf("pinned again: %+v", r)
	}
	if r := w.mustHandle("4-0", events.Change{URL: url}); r.Before != commits[0] || r.After != tip {
		t.Errorf("the next change of the ref: %+v; want its tip", r)
	}
}

func TestRefusedCommitFails(t *testing.T) {
	w := newWorld(t)
	w.history(2)
	for name, change := range map[string]events.Change{
		"as ref": {Ref: mustRef(absent)}, "pinned": {After: absent, Pin: true},
	} {
		change.URL = w.git.URL("acme/widgets")
		_, err := w.handle("1-0", change)
		if events.ClassOf(err) != events.ClassNoRef || events.DispositionOf(err) != events.Permanent {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPinnedCommitsAreNotCoalesced(t *testing.T) {
	w := newWorld(t)
	commits := w.history(3)
	url := w.git.URL("acme/widgets")
	w.latest = "9-0"
	tip := events.Change{URL: url, Ref: mustRef("main")}
	pin := events.Change{URL: url, Ref: mustRef("main"), After: commits[0], Pin: true}
	commit := events.Change{URL: url, Ref: mustRef(commits[0])}
	type waiting struct {
		entry   string
		change  events.Change
		covered bool
	}
	for name, tc := range map[string]struct {
		job    events.Change
		others []waiting
	}{
		"a sync covers what was queued before a pin": {tip, []waiting{{"2-0", tip, true}, {"3-0", pin, false}, {"4-0", tip, false}}},
		"also a pin of its own commit":               {tip, []waiting{{"2-0", events.Change{URL: url, Ref: mustRef("main"), After: commits[2], Pin: true}, false}, {"3-0", tip, false}}},
		"a pin covers nothing":                       {pin, []waiting{{"2-0", pin, false}, {"3-0", tip, false}, {"4-0", commit, false}}},
		"a commit covers the same commit, always":    {commit, []waiting{{"2-0", commit, true}, {"3-0", pin, false}, {"4-0", tip, false}, {"99-0", commit, true}}},
		"a pin of another ref is no obstacle":        {tip, []waiting{{"2-0", events.Change{URL: url, Ref: mustRef("dev"), After: commits[0], Pin: true}, false}, {"3-0", tip, true}}},
	} {
		outcome := testenv.Must(w.outcome("1-0", tc.job))(t)
		for _, other := range tc.others {
			covered := false
			if outcome.Covers != nil {
				_, covered = outcome.Covers(context.Background(), w.job(other.entry, other.change))
			}
			if covered != other.covered {
				t.Errorf("%s: entry %s covered: %v, want %v", name, other.entry, covered, other.covered)
			}
		}
	}
}

func TestPollOfAWatchedCommit(t *testing.T) {
	w := newWorld(t)
	commits := w.history(3)
	w.latest = "5-0"
	watched := w.watch("docs", commits[0])
	if got := requested(w.due("a-0")); got != "pushed docs "+commits[0] {
		t.Errorf("requested %q, want the commit", got)
	}
	for _, entry := range []string{"b-0", "c-0"} {
		if got := requested(w.due(entry)); got != "" {
			t.Errorf("requested %q, want nothing: the commit is published", got)
		}
		w.push(map[string]string{"b": entry})
	}
	w.unwatch(watched)
	w.watch("docs", "")
	if got := requested(w.due("d-0")); got != "pushed docs, removed  "+commits[0] {
		t.Errorf("requested %q, want the unwatched commit removed", got)
	}
	if _, err := os.Lstat(filepath.Join(w.root, "acme/widgets@"+commits[0])); !os.IsNotExist(err) {
		t.Errorf("still published: %v", err)
	}
}
