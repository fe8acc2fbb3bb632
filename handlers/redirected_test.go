package handlers_test

import (
	"net/http"
	"path/filepath"
	"testing"

	"lockstep/events"
	"lockstep/internal/watch"
)

// redirects watches acme/widgets, syncs it, and renames it to acme/gadgets on the server, which redirects with status.
func (w *world) redirects(of watch.Watch, status int) {
	w.t.Helper()
	w.create(map[string]string{"a": "1"})
	of.App, of.URL = "docs", w.git.URL("acme/widgets")
	w.watchAs(of, "")
	w.due("a-0")
	must(w.t, w.git.Rename("acme/widgets", "acme/gadgets"))
	w.git.Redirect("acme/widgets", w.git.URL("acme/gadgets"), status)
}

func TestPollFollowsPermanentRedirectIfAsked(t *testing.T) {
	w := newWorld(t)
	w.redirects(watch.Watch{FollowMoves: true}, http.StatusMovedPermanently)
	changes := w.due("b-0")
	if got := requested(changes); len(changes) != 1 || changes[0].Type != events.ChangeMoved || changes[0].To.String() != "acme/gadgets" {
		t.Fatalf("requested %s, want a move to acme/gadgets", got)
	}
	w.mustBeWatched(w.repo(), 0)
	w.mustBeWatched(path(t, "acme/gadgets"), 1)
	if _, err := filepath.EvalSymlinks(filepath.Join(w.root, "acme/gadgets")); err != nil {
		t.Error(err)
	}
	r := w.mustHandle("c-0", events.Change{Type: events.ChangeDue, Repo: path(t, "acme/gadgets")})
	if r.Due != 0 {
		t.Errorf("after the move a poll requests %d changes, want none", r.Due)
	}
}

func TestMoveByRedirectKeepsChosenPath(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.watchAs(watch.Watch{App: "docs", URL: w.git.URL("acme/widgets"), Repo: path(t, "mine/here"), FollowMoves: true}, "")
	must(t, w.git.Rename("acme/widgets", "acme/gadgets"))
	w.git.Redirect("acme/widgets", w.git.URL("acme/gadgets"), http.StatusPermanentRedirect)
	w.mustHandle("a-0", events.Change{Type: events.ChangeDue, Repo: path(t, "mine/here")})
	last := w.next[len(w.next)-1]
	if last.Type != events.ChangeMoved || last.To.String() != "mine/here" || last.URL != w.git.URL("acme/gadgets") {
		t.Errorf("requested %+v, want the URL of mine/here changed", last)
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	follow := watch.Watch{FollowMoves: true}
	for name, tc := range map[string]struct {
		of     watch.Watch
		status int
		before func(w *world)
	}{
		"nobody asks":       {watch.Watch{}, http.StatusMovedPermanently, func(*world) {}},
		"temporary":         {follow, http.StatusTemporaryRedirect, func(*world) {}},
		"only the spelling": {follow, http.StatusMovedPermanently, func(w *world) { w.git.Redirect("acme/widgets", w.git.URL("acme/Widgets"), http.StatusMovedPermanently) }},
		"new path has a neighbour": {follow, http.StatusMovedPermanently, func(w *world) {
			w.watchAs(watch.Watch{App: "ci", URL: "https://other.example.com/acme/gadgets.git"}, "")
		}},
		"credential is not for it": {watch.Watch{FollowMoves: true, Credential: "bot"}, http.StatusMovedPermanently, func(*world) {}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.env["LOCKSTEP_CREDENTIAL_BOT_PASSWORD"], w.env["LOCKSTEP_CREDENTIAL_BOT_URLS"] = "secret", w.git.URL("acme/widgets")
			w.redirects(tc.of, tc.status)
			if name == "only the spelling" {
				must(t, w.git.Alias("acme/Widgets", "acme/gadgets"))
			}
			tc.before(w)
			if changes := w.due("b-0"); len(changes) != 0 {
				t.Errorf("requested %s, want nothing", requested(changes))
			}
			w.mustBeWatched(w.repo(), 1)
		})
	}
}
