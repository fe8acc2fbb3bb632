package volume

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

func TestMoveRefusals(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		arrange     func(w *world)
		change      func(w *world, req *MoveRequest)
		class       events.Class
		disposition events.Disposition
		says        string
	}{
		"another repository at the old name and at the new": {
			arrange: func(w *world) {
				testenv.Must(w.git.Create(w.t.Context(), gadgets, map[string]string{"other": "1"}))(w.t)
			}, class: events.ClassConflict, disposition: events.Permanent, says: "not the same repository"},
		"an empty repository at the new name, the old one still there": {
			arrange: func(w *world) { testenv.Must(0, w.git.CreateEmpty(w.t.Context(), gadgets))(w.t) },
			class:   events.ClassConflict, disposition: events.Permanent, says: "not the same repository"},
		"the new name is another remote's": {
			arrange: func(w *world) {
				testenv.Must(w.git.Create(w.t.Context(), "other/repo", map[string]string{"other": "1"}))(w.t)
				req := w.requestAt(gadgets, "")
				req.URL = w.git.URL("other/repo")
				testenv.Must(w.volume.Sync(w.t.Context(), req))(w.t)
				w.rename(widgets, gadgets)
			}, class: events.ClassConflict, disposition: events.Permanent, says: "give the other repository another path"},
		"the new remote is not there": {class: events.ClassNotFound, disposition: events.Permanent},
		"the new remote wants a credential": {
			arrange: func(w *world) { w.rename(widgets, gadgets); w.git.RequireAuth(gadgets, "ada", secret) },
			class:   events.ClassAuth, disposition: events.Permanent},
		"a credential wanted by the old one, and nothing in common": {
			arrange: func(w *world) {
				testenv.Must(w.git.Create(w.t.Context(), gadgets, map[string]string{"other": "1"}))(w.t)
				w.git.RequireAuth(widgets, "ada", secret)
			}, class: events.ClassAuth, disposition: events.Permanent, says: "old remote"},
		"nobody can say what the old one is": {
			arrange: func(w *world) {
				testenv.Must(w.git.Create(w.t.Context(), gadgets, map[string]string{"other": "1"}))(w.t)
				w.git.Answer(widgets, http.StatusBadGateway)
			}, class: events.ClassServer, disposition: events.Retryable, says: "old remote"},
		"another host": {
			arrange: func(w *world) { w.rename(widgets, gadgets) },
			change: func(_ *world, req *MoveRequest) {
				req.URL = strings.Replace(req.URL, "127.0.0.1", "localhost", 1)
			}, class: events.ClassConflict, disposition: events.Permanent, says: "different hosts"},
		"below itself": {
			change: func(w *world, req *MoveRequest) { req.To = repoPath(w.t, widgets+"/docs") },
			class:  events.ClassConflict, disposition: events.Permanent, says: "side by side"},
		"a folder of someone else's in the way": {
			arrange: func(w *world) {
				w.rename(widgets, gadgets)
				testenv.Must(0, os.MkdirAll(w.path(gadgets, "mine"), 0o755))(w.t)
			}, class: events.ClassConflict, disposition: events.Permanent, says: "is a folder already"},
		"a stale holder of the old name": {
			arrange: func(w *world) { w.rename(widgets, gadgets) },
			change:  func(_ *world, req *MoveRequest) { req.Fence = 1 },
			class:   events.ClassBusy, disposition: events.Contention},
		"no lease of the new name": {
			change: func(_ *world, req *MoveRequest) { req.ToFence = 0 },
			class:  events.ClassInternal, disposition: events.Permanent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			commit := w.create(map[string]string{"a": "1"})
			w.sync("")
			w.sync("")
			if tc.arrange != nil {
				tc.arrange(w)
			}
			was := w.publishedAt(gadgets)
			req := w.move()
			if tc.change != nil {
				tc.change(w, &req)
			}

			err := w.volume.Move(t.Context(), req)

			testenv.MustFail(t, err, tc.class, tc.disposition)
			if !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want %q", err, tc.says)
			}
			w.mustBeSound(widgets, commit)
			if now := w.publishedAt(gadgets); now != was {
				t.Errorf("the new name now names %q", now)
			}
			if _, ok, _ := w.volume.Published(repoPath(t, widgets)); !ok {
				t.Error("the old path is bound no more")
			}
		})
	}
}

func TestMoveDetectsSameRepository(t *testing.T) {
	t.Parallel()
	for name, arrange := range map[string]func(w *world){
		"the new one has a commit that is published": func(w *world) {
			w.rename(widgets, gadgets)
			testenv.Must(w.git.Create(w.t.Context(), widgets, map[string]string{"someone": "else"}))(w.t)
		},
		"so it has, and the old one may not be seen": func(w *world) {
			w.rename(widgets, gadgets)
			testenv.Must(w.git.Create(w.t.Context(), widgets, map[string]string{"someone": "else"}))(w.t)
			w.git.RequireAuth(widgets, "ada", secret)
		},
		"the old one is not found": func(w *world) {
			w.rename(widgets, gadgets)
			testenv.Must(w.git.Commit(w.t.Context(), gadgets, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(w.t)
		},
		"the old one lists the same refs": func(w *world) {
			w.rename(widgets, gadgets)
			testenv.Must(0, w.git.Alias(widgets, gadgets))(w.t)
			testenv.Must(w.git.Commit(w.t.Context(), gadgets, gitserver.Main, gitserver.Edit{Orphan: true, Write: map[string]string{"a": "2"}}))(w.t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			commit := w.create(map[string]string{"a": "1"})
			w.sync("")
			arrange(w)
			testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
			w.mustBeSound(gadgets, commit)
			w.syncAt(gadgets, "")
			w.mustVerifyAt(gadgets)
		})
	}
}

func TestMoveWithLostLeaseChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.sync("")
	w.rename(widgets, gadgets)
	req, lost := w.move(), errors.New("lease lost")
	req.Confirm = func(context.Context) error { return lost }
	err := w.volume.Move(t.Context(), req)
	if !errors.Is(err, lost) {
		t.Errorf("got %v", err)
	}
	w.mustBeSound(widgets, commit)
	if isThere(t, w.path(gadgets)) {
		t.Error("the new name is published")
	}
	if trees := testenv.Must(disk.ReadDir(w.volume.folder(req.To).trees()))(t); len(trees) != 0 {
		t.Errorf("it left %v", trees)
	}
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	w.mustBeSound(gadgets, commit)
}

func TestMoveDoesNotLinkPrunedStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	testenv.Must(0, w.git.Rename(widgets, gadgets))(t)
	testenv.Must(0, w.git.Alias(widgets, gadgets))(t)
	slow := w.open(w.volume.Root(), Config{})
	req := w.move()
	var newest string
	slow.cfg.Step = func(step string) {
		if step == "bound" {
			newest = testenv.Must(w.git.Commit(t.Context(), gadgets, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
			w.sync("")
		}
	}
	err := slow.Move(t.Context(), req)
	testenv.MustFail(t, err, events.ClassBusy, events.Contention)
	w.mustBeSound(widgets, newest)
	if isThere(t, w.path(gadgets)) {
		t.Error("the new name is published")
	}
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	w.mustBeSound(gadgets, newest)
	w.mustVerifyAt(gadgets)
}

// The credential belongs to the new remote. It must not be sent to the old one, which may use plain HTTP.
func TestMoveUsesSeparateCredentials(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	asked := len(w.git.TokensSeen(widgets))
	testenv.Must(0, w.git.Rename(widgets, gadgets))(t)
	req := w.move()
	req.Auth = wire.Auth{BearerToken: "of the new"}
	req.Former = []Remote{{URL: w.git.URL(widgets), Auth: wire.Auth{BearerToken: "of the old"}}}
	testenv.Must(0, w.volume.Move(t.Context(), req))(t)
	if seen := slices.Compact(w.git.TokensSeen(widgets)[asked:]); !slices.Equal(seen, []string{"of the old"}) {
		t.Errorf("the old one saw %q", seen)
	}
	if seen := slices.Compact(w.git.TokensSeen(gadgets)); !slices.Equal(seen, []string{"of the new"}) {
		t.Errorf("the new one saw %q", seen)
	}
}

// A move compares the refs of two remotes, one after the other, while pushes continue.
func TestPushesDuringMove(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		pushes func(asked int) bool // called before the nth request to a remote
		refuse bool
	}{
		"one":    {pushes: func(asked int) bool { return asked == 2 }},
		"always": {pushes: func(asked int) bool { return asked > 1 }, refuse: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var w *world
			asked, mover := 0, false
			w = newWorld(t, gitserver.WithBefore(func(ctx context.Context, _, _ string) {
				if asked++; mover && tc.pushes(asked) {
					edit := gitserver.Edit{Orphan: true, Write: map[string]string{"n": fmt.Sprint(asked)}}
					testenv.Must(w.git.Commit(ctx, gadgets, gitserver.Main, edit))(t)
				}
			}))
			commit := w.create(map[string]string{"a": "1"})
			w.sync("")
			testenv.Must(0, w.git.Rename(widgets, gadgets))(t)
			testenv.Must(0, w.git.Alias(widgets, gadgets))(t)
			testenv.Must(w.git.Commit(t.Context(), gadgets, gitserver.Main, gitserver.Edit{Orphan: true, Write: map[string]string{"n": "0"}}))(t)
			asked, mover = 0, true
			err := w.volume.Move(t.Context(), w.move())
			mover = false
			if !tc.refuse {
				testenv.Must(0, err)(t)
				return
			}
			testenv.MustFail(t, err, events.ClassConflict, events.Retryable)
			w.mustBeSound(widgets, commit)
			testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
		})
	}
}

func TestMissingRemotesProveNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	req := w.move()
	req.Former = []Remote{{URL: w.git.URL(widgets)}}
	req.Bring = func(context.Context) error { t.Error("it brought something"); return nil }
	testenv.MustFail(t, w.volume.Move(t.Context(), req), events.ClassNotFound, events.Permanent)
}

// It may exist: whose credential could see it was not used.
func TestUnseenRemoteProvesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.sync("")
	w.rename(widgets, "hidden/widgets")
	testenv.Must(w.git.Create(t.Context(), gadgets, map[string]string{"other": "1"}))(t)
	req := w.move()
	req.Former[0].Unseen = true
	testenv.MustFail(t, w.volume.Move(t.Context(), req), events.ClassNotFound, events.Permanent)
	w.mustBeSound(widgets, commit)
}
