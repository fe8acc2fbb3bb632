package handlers_test

import (
	"context"
	"path/filepath"
	"testing"

	"lockstep/events"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

// mirrored adds a watch of acme/widgets at the path mirror/w.
func mirrored(w *world) events.RepoPath {
	w.t.Helper()
	mirror := testenv.Must(events.ParseRepoPath("mirror/w"))(w.t)
	w.watchAs(watch.Watch{App: "docs", Repo: mirror, URL: w.git.URL("acme/widgets")}, "")
	return mirror
}

// pushedTo syncs the watches of a remote, like its webhook.
func (w *world) pushedTo(entry, url string) []events.Result {
	w.t.Helper()
	placed := testenv.Must(w.watches.ByRemote(context.Background(), url))(w.t)
	var results []events.Result
	for _, of := range placed.Watches {
		change := testenv.Must(of.Change("", "/hooks/hub", events.Ref{}, ""))(w.t)
		results = append(results, w.mustHandle(entry, change))
	}
	return results
}

func TestCloneAtCustomPathStaysAfterRename(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	first := w.create(map[string]string{"a": "1"})
	mirror := mirrored(w)
	was, is := w.git.URL("acme/widgets"), w.git.URL("acme/gadgets")
	before := w.pushedTo("1-0", was)
	if len(before) != 1 || before[0].After != first || before[0].Path != "mirror/w" {
		t.Fatalf("%+v", before)
	}
	fetches := w.git.Stats("acme/widgets").UploadPacks
	must(t, w.git.Rename("acme/widgets", "acme/gadgets"))
	move := events.Change{Type: events.ChangeMoved, Repo: mirror, To: mirror, URL: is}
	for range 2 { // the second time as if the first worker died before settling
		r := w.mustHandle("2-0", move)
		if r.Type != events.ResultMoved || !r.Repo.Equal(mirror) || !r.To.Equal(mirror) || r.Path != "mirror/w" || r.Tree != before[0].Tree {
			t.Errorf("result %+v, want the same tree, %s", r, before[0].Tree)
		}
	}
	if got := w.git.Stats("acme/gadgets").UploadPacks + w.git.Stats("acme/widgets").UploadPacks; got != fetches {
		t.Errorf("%d more fetches, want none", got-fetches)
	}
	if published, bound, err := w.handlers.Volume.Published(mirror); err != nil || !bound || published.Remote != is {
		t.Errorf("%+v, bound %v, error %v; want it bound to %s", published, bound, err, is)
	}
	if old, err := w.watches.ByRemote(ctx, was); err != nil || old.Version != "" {
		t.Errorf("still watched at the old remote: %+v, error %v", old, err)
	}
	if r := w.pushedTo("3-0", is); len(r) != 1 || r[0].Before != first || r[0].After != first {
		t.Errorf("docs received %+v, want nothing new", r)
	}
	known := testenv.Must(w.states.Load(ctx, mirror))(t)
	if known.Given("docs", mainRef(t)) != first || known.Remote() != is {
		t.Errorf("lost what docs was given, or the remote: %+v", known)
	}
}

func TestAnotherRepositoryCannotTakeOverAPath(t *testing.T) {
	for name, cloned := range map[string]bool{"with a clone": true, "without one": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ctx := context.Background()
			w.create(map[string]string{"a": "1"})
			testenv.Must(w.git.Create(ctx, "evil/widgets", map[string]string{"a": "evil"}))(t)
			mirror := mirrored(w)
			url := w.git.URL("acme/widgets")
			if cloned {
				w.pushedTo("1-0", url)
			}
			move := events.Change{Type: events.ChangeMoved, Repo: mirror, To: mirror, URL: w.git.URL("evil/widgets")}
			if _, err := w.handle("2-0", move); events.ClassOf(err) != events.ClassConflict {
				t.Errorf("another repository: %v; want a conflict", err)
			}
			if set, err := w.watches.Of(ctx, mirror); err != nil || len(set.Watches) != 1 || set.Watches[0].URL != url {
				t.Errorf("watches %+v, error %v; want them unchanged", set, err)
			}
			must(t, w.git.Rename("acme/widgets", "acme/gadgets"))
			move.URL = w.git.URL("acme/gadgets")
			w.mustHandle("3-0", move)
			if r := w.pushedTo("4-0", move.URL); len(r) != 1 || r[0].Path != "mirror/w" {
				t.Errorf("%+v", r)
			}
			if _, err := filepath.EvalSymlinks(filepath.Join(w.root, "mirror/w")); err != nil {
				t.Error(err)
			}
		})
	}
}
