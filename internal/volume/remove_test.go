package volume

import (
	"errors"
	"net/http"
	"os"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

func (w *world) removal() RemoveRequest {
	return RemoveRequest{Repo: repoPath(w.t, widgets), Fence: w.fence.Add(1)}
}

func TestRemoveChecksRemote(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		arrange     func(w *world)
		force       bool
		class       events.Class
		disposition events.Disposition
	}{
		"gone":              {arrange: func(w *world) { testenv.Must(0, w.git.Delete(widgets))(w.t) }},
		"still there":       {class: events.ClassConflict, disposition: events.Permanent},
		"there, but forced": {force: true},
		"credential wanted": {arrange: func(w *world) { w.git.RequireAuth(widgets, "ada", secret) }, class: events.ClassAuth, disposition: events.Permanent},
		"server down":       {arrange: func(w *world) { w.git.Answer(widgets, http.StatusBadGateway) }, class: events.ClassServer, disposition: events.Retryable},
		"unreachable":       {arrange: func(w *world) { w.git.Close() }, class: events.ClassNetwork, disposition: events.Retryable},
		"empty, but there": {arrange: func(w *world) {
			testenv.Must(0, w.git.DeleteRef(w.t.Context(), widgets, "refs/heads/main"))(w.t)
			testenv.Must(0, w.git.DeleteRef(w.t.Context(), widgets, "refs/heads/other"))(w.t)
		}, class: events.ClassConflict, disposition: events.Permanent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			commit := w.create(map[string]string{"a": "1"})
			w.commit("other", gitserver.Edit{})
			w.sync("")
			w.sync("other")
			if tc.arrange != nil {
				tc.arrange(w)
			}
			req := w.removal()
			req.Force = tc.force

			removed, err := w.volume.Remove(t.Context(), req)

			if tc.class != "" {
				testenv.MustFail(t, err, tc.class, tc.disposition)
				w.mustBeSound(widgets, commit)
				return
			}
			testenv.Must(0, err)(t)
			if !removed {
				t.Error("nothing was removed")
			}
			if _, err := os.Lstat(w.path("acme")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the owner's folder is still there: %v", err)
			}
			if left := testenv.Must(os.ReadDir(w.path(".lockstep/repos/acme/widgets")))(t); len(left) != 3 { // fence, lock, trash
				t.Errorf("still there: %v", left)
			}
			mustBeTidy(t, w)
		})
	}
}

func TestRemovedRepositoryCanBeSyncedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	stale := w.request("")
	req := w.removal()
	req.Force = true
	testenv.Must(w.volume.Remove(t.Context(), req))(t)

	_, err := w.volume.Sync(t.Context(), stale)
	testenv.MustFail(t, err, events.ClassBusy, events.Contention)
	if removed := testenv.Must(w.volume.Remove(t.Context(), w.removal()))(t); removed {
		t.Error("removed twice")
	}
	commit := testenv.Must(w.git.Create(t.Context(), "acme/other", map[string]string{"b": "1"}))(t)
	other := w.request("")
	other.URL = w.git.URL("acme/other") // the path can be bound to another remote
	testenv.Must(w.volume.Sync(t.Context(), other))(t)
	w.mustBeSound(widgets, commit)
}

func TestRemoveOfUnknownRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if removed := testenv.Must(w.volume.Remove(t.Context(), w.removal()))(t); removed {
		t.Error("removed nothing")
	}
}

func TestStaleOrCrashedRemoval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.sync("")
	req := w.removal()
	req.Force = true
	slow := w.open(w.volume.Root(), Config{})
	slow.cfg.Step = func(step string) {
		if step == "confirmed" {
			w.sync("")
		}
	}
	_, err := slow.Remove(t.Context(), req)
	testenv.MustFail(t, err, events.ClassBusy, events.Contention)
	w.mustBeSound(widgets, commit)

	died := errors.New("died")
	slow.cfg.Step = func(step string) {
		if step == "unpublished" {
			panic(died)
		}
	}
	func() {
		defer func() { _ = recover() }()
		req.Fence = w.fence.Add(1)
		_, _ = slow.Remove(t.Context(), req)
		t.Error("it did not die")
	}()
	slow.cfg.Step = nil
	req.Fence = w.fence.Add(1)
	if removed := testenv.Must(slow.Remove(t.Context(), req))(t); !removed {
		t.Error("the removal was not taken up again")
	}
	w.sync("")
	w.mustBeSound(widgets, commit)
}
