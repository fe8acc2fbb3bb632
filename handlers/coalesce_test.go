package handlers_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/handlers"
	"lockstep/internal/testenv"
)

const (
	absent = "00000000000000000000000000000000000000aa"
	older  = "00000000000000000000000000000000000000bb"
)

// asked returns how often the remote was asked while do ran.
func (w *world) asked(do func()) int {
	before := w.git.Stats("acme/widgets").InfoRefs
	do()
	return w.git.Stats("acme/widgets").InfoRefs - before
}

func TestRemoteIsNotAskedTwice(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(w *world)
		entry   string
		latest  string
		change  events.Change
		asks    int
	}{
		"an older entry":                               {entry: "4-0"},
		"the last entry before the question":           {entry: "5-1"},
		"a later one of the same millisecond":          {entry: "5-2", asks: 1},
		"an earlier one, of more digits":               {entry: "5-0"},
		"a later entry":                                {entry: "6-0", latest: "6-0", asks: 1},
		"another ref":                                  {entry: "4-0", change: events.Change{Ref: mustRef("refs/heads/other")}, asks: 1},
		"the same ref by its name":                     {entry: "4-0", change: events.Change{Ref: mustRef("refs/heads/main")}},
		"another app with that credential":             {entry: "4-0", change: events.Change{App: "search"}},
		"announces the answered commit":                {entry: "4-0", change: events.Change{After: "head"}},
		"announces another commit":                     {entry: "4-0", change: events.Change{After: absent}, asks: 1},
		"no stream":                                    {entry: "4-0", latest: "none", asks: 1},
		"a stream that was lost and recreated":         {entry: "1-0", latest: "3-0", asks: 1},
		"a deleted tree":                               {entry: "4-0", prepare: (*world).wipe, asks: 1},
		"a tree that was published, but never settled": {entry: "4-0", prepare: (*world).publishUnsettled, asks: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(map[string]string{"a": "1"})
			if err := w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/other", w.git.Head("acme/widgets", "refs/heads/main")); err != nil {
				t.Fatal(err)
			}
			w.latest = "5-1"
			w.mustHandle("3-0", events.Change{URL: w.git.URL("acme/widgets")})
			if tc.prepare != nil {
				tc.prepare(w)
			}
			change := tc.change
			change.URL = w.git.URL("acme/widgets")
			if change.After == "head" {
				change.After = w.git.Head("acme/widgets", "refs/heads/main")
			}
			switch tc.latest {
			case "none":
				w.latest = ""
			case "":
			default:
				w.latest = tc.latest
			}
			n := w.asked(func() {
				r, err := w.handle(tc.entry, change)
				if change.After == absent {
					return // see TestAnnouncedCommitIsAwaited
				}
				if err != nil || r.After != w.git.Head("acme/widgets", "refs/heads/main") || !w.published() {
					t.Errorf("result %+v, %v; published %v", r, err, w.published())
				}
			})
			if n != tc.asks {
				t.Errorf("the remote was asked %d times; want %d", n, tc.asks)
			}
		})
	}
}

// wipe deletes the volume's trees and stores.
func (w *world) wipe() {
	for _, dir := range []string{"acme", ".lockstep/repos"} {
		must(w.t, os.RemoveAll(filepath.Join(w.root, dir)))
	}
}

// publishUnsettled publishes a new commit like a worker that dies before settling.
func (w *world) publishUnsettled() {
	w.push(map[string]string{"b": "2"})
	w.handleUnsettled("6-0", events.Change{URL: w.git.URL("acme/widgets")})
}

func TestEachCredentialIsProved(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.git.RequireAuth("acme/widgets", "bot", "s3cret")
	w.env["LOCKSTEP_CREDENTIAL_GOOD_USERNAME"], w.env["LOCKSTEP_CREDENTIAL_GOOD_PASSWORD"] = "bot", "s3cret"
	w.env["LOCKSTEP_CREDENTIAL_GOOD_URLS"] = w.git.URL("acme/widgets")
	w.env["LOCKSTEP_CREDENTIAL_BAD_USERNAME"], w.env["LOCKSTEP_CREDENTIAL_BAD_PASSWORD"] = "bot", "wrong"
	w.env["LOCKSTEP_CREDENTIAL_BAD_URLS"] = w.git.URL("acme/widgets")
	url := w.git.URL("acme/widgets")
	w.latest = "5-0"
	w.mustHandle("1-0", events.Change{URL: url, App: "docs", Credential: "good"})
	if r, err := w.handle("2-0", events.Change{URL: url, App: "spy", Credential: "bad"}); events.ClassOf(err) != events.ClassAuth {
		t.Errorf("with a wrong credential: %+v, %v; want auth", r, err)
	}
	if r, err := w.handle("3-0", events.Change{URL: url, App: "spy"}); events.ClassOf(err) != events.ClassAuth {
		t.Errorf("without a credential: %+v, %v; want auth", r, err)
	}
	n := w.asked(func() {
		if r := w.mustHandle("4-0", events.Change{URL: url, App: "search", Credential: "good"}); len(r.Files) != 1 || r.Before != "" {
			t.Errorf("search received %+v; want the whole tree", r)
		}
	})
	if n != 0 {
		t.Errorf("the remote was asked %d times, want 0: the credential was just proved", n)
	}
}

func TestSyncCovers(t *testing.T) {
	w := newWorld(t)
	head := w.create(map[string]string{"a": "1"})
	url := w.git.URL("acme/widgets")
	w.latest = "8-0"
	w.waiting = []handlers.Job{w.job("7-0", events.Change{URL: url, App: "docs", Before: older, After: head})}
	outcome := testenv.Must(w.outcome("1-0", events.Change{URL: url, App: "docs"}))(t)
	for name, tc := range map[string]struct {
		entry  string
		change events.Change
		want   bool
	}{
		"one that announces nothing":       {"2-0", events.Change{}, true},
		"one that announces the commit":    {"2-0", events.Change{After: head}, true},
		"a superseded announcement":        {"3-0", events.Change{After: older}, true},
		"one that is not there yet":        {"3-0", events.Change{After: absent}, false},
		"one that came later":              {"9-0", events.Change{}, false},
		"one of no app":                    {"2-0", events.Change{App: "-"}, false},
		"one with another credential":      {"2-0", events.Change{Credential: "other"}, false},
		"one for another ref":              {"2-0", events.Change{Ref: mustRef("refs/heads/x")}, false},
		"one from another remote":          {"2-0", events.Change{URL: strings.Replace(url, "127.0.0.1", "localhost", 1)}, false},
		"a removal":                        {"2-0", events.Change{Type: events.ChangeRemoved}, false},
		"one that is no later than ours":   {"1-0", events.Change{}, true},
		"the last one before the question": {"8-0", events.Change{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			change := tc.change
			if change.URL == "" {
				change.URL = url
			}
			switch change.App {
			case "":
				change.App = "docs"
			case "-":
				change.App = ""
			}
			change.Repo = outcome.Result.Repo
			covered, ok := outcome.Covers(context.Background(), w.job(tc.entry, change))
			if ok != tc.want {
				t.Fatalf("covered: %v; want %v", ok, tc.want)
			}
			if r := covered.Result; ok && (r.Before != head || r.After != head || r.Until != "8-0" || len(r.Files) != 0 ||
				r.Deliveries[0] != "job-"+tc.entry || r.Tree != outcome.Result.Tree) {
				t.Errorf("result %+v", r)
			}
		})
	}
}

func mustRef(s string) events.Ref {
	ref, err := events.ParseRef(s)
	if err != nil {
		panic(err)
	}
	return ref
}
