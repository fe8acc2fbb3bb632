package volume

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

func (w *world) refRemoval(ref string) RemoveRequest {
	w.t.Helper()
	return RemoveRequest{Repo: repoPath(w.t, widgets), URL: w.git.URL(widgets), Ref: testenv.Must(events.ParseRef(ref))(w.t), Fence: w.fence.Add(1)}
}

// deleteRef deletes a ref at the remote.
func (w *world) deleteRef(ref string) {
	w.t.Helper()
	testenv.Must(0, w.git.DeleteRef(w.t.Context(), widgets, ref))(w.t)
}

func TestRemoveRef(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		arrange     func(w *world)
		ref         string
		force       bool
		class       events.Class
		disposition events.Disposition
		says        string
		nothing     bool
	}{
		"gone":                      {arrange: func(w *world) { w.deleteRef("refs/heads/a/b") }},
		"the repository is gone":    {arrange: func(w *world) { testenv.Must(0, w.git.Delete(widgets))(w.t) }},
		"all refs are gone":         {arrange: func(w *world) { w.deleteRef("refs/heads/a/b"); w.deleteRef("refs/heads/main") }},
		"still there":               {class: events.ClassConflict, disposition: events.Permanent, says: "the remote still has refs/heads/a/b"},
		"there, but forced":         {force: true},
		"a credential wanted":       {arrange: func(w *world) { w.git.RequireAuth(widgets, "ada", secret) }, class: events.ClassAuth, disposition: events.Permanent},
		"server down":               {arrange: func(w *world) { w.git.Answer(widgets, http.StatusBadGateway) }, class: events.ClassServer, disposition: events.Retryable},
		"what the plain name names": {ref: "main", force: true, class: events.ClassConflict, disposition: events.Permanent, says: "is what the plain name is published for; it stays until another default branch is published"},
		"the default branch":        {ref: "HEAD", force: true, class: events.ClassConflict, disposition: events.Permanent, says: "the plain name"},
		"never published":           {ref: "v9", nothing: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			main := w.create(map[string]string{"a": "1"})
			commit := w.commit("a/b", gitserver.Edit{Write: map[string]string{"b": "1"}})
			w.sync("")
			res := w.sync("a/b")
			if tc.arrange != nil {
				tc.arrange(w)
			}
			req := w.refRemoval("a/b")
			if tc.ref != "" {
				req.Ref = testenv.Must(events.ParseRef(tc.ref))(t)
			}
			req.Force = tc.force

			removed, err := w.volume.RemoveRef(t.Context(), req)

			w.mustBeSound(widgets, main)
			if tc.class != "" || tc.nothing {
				if tc.class != "" {
					testenv.MustFail(t, err, tc.class, tc.disposition)
					if !strings.Contains(err.Error(), tc.says) {
						t.Errorf("got %v", err)
					}
				} else if testenv.Must(removed, err)(t) {
					t.Error("something was removed")
				}
				w.mustBeSound(res.Path, commit)
				return
			}
			if !testenv.Must(removed, err)(t) {
				t.Error("nothing was removed")
			}
			if isThere(t, w.path(res.Path)) {
				t.Error("the name is still there")
			}
			w.mustBeSound(res.Tree, commit) // within its grace period
			if testenv.Must(w.volume.RemoveRef(t.Context(), req))(t) {
				t.Error("removed twice")
			}
			w.mustVerify()
			v := w.volume
			w.volume = w.open(v.Root(), Config{Grace: 1})
			w.gc(false)
			if isThere(t, w.path(res.Tree)) {
				t.Error("the tree outlived its grace")
			}
			mustBeTidy(t, w)
		})
	}
}

// Objects that only a removed ref needs are pruned, and the ref can be created again.
func TestObjectsOfRemovedRefArePruned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.commit("v1", gitserver.Edit{Write: map[string]string{"v": noise(t, 1<<20)}})
	w.sync("v1")
	before := w.gc(true).Usage.Bytes
	commit := w.git.Head(widgets, "refs/heads/v1")
	w.deleteRef("refs/heads/v1")
	testenv.Must(w.volume.RemoveRef(t.Context(), w.refRemoval("v1")))(t)
	w.volume = w.open(w.volume.Root(), Config{Grace: 1})
	if freed := before - w.gc(true).Usage.Bytes; freed < 2<<20 { // the file in the tree and its object
		t.Errorf("freed %d bytes", freed)
	}
	testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/v1", commit))(t)
	res := w.sync("v1")
	w.mustBeSound(res.Path, commit)
	w.mustVerify()
}

// The plain name alone is removed if its ref has a name of its own. The next sync of the ref does not bring it back.
func TestRemovePlainNameAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	dev := w.commit("dev", gitserver.Edit{Write: map[string]string{"a": "2"}})
	testenv.Must(0, w.git.SetHead(widgets, "dev"))(t)
	w.sync("")
	testenv.Must(0, w.git.SetHead(widgets, "main"))(t)
	w.sync("dev")
	if published, _, err := w.volume.Published(repoPath(t, widgets)); err != nil || !published.Named[published.Plain] {
		t.Fatalf("%+v, %v", published, err)
	}
	req := RemoveRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1), Force: true}
	_, err := w.volume.RemoveRef(t.Context(), req)
	testenv.MustFail(t, err, events.ClassConflict, events.Permanent)
	req.Plain = true
	if !testenv.Must(w.volume.RemoveRef(t.Context(), req))(t) || isThere(t, w.path(widgets)) {
		t.Error("the plain name is still there")
	}
	w.mustBeSound(widgets+"@dev", dev)
	dev = w.commit("dev", gitserver.Edit{Write: map[string]string{"a": "3"}})
	w.sync("dev")
	w.mustBeSound(widgets+"@dev", dev)
	req.Fence = w.fence.Add(1)
	if isThere(t, w.path(widgets)) || testenv.Must(w.volume.RemoveRef(t.Context(), req))(t) {
		t.Error("the plain name is back")
	}
	w.mustVerify()
}

// After a rename of the default branch, the old ref can be removed once the new one is published.
func TestRemoveFormerDefaultBranch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.sync("")
	testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/trunk", commit))(t)
	testenv.Must(0, w.git.SetHead(widgets, "trunk"))(t)
	w.deleteRef("refs/heads/main")
	_, err := w.volume.RemoveRef(t.Context(), w.refRemoval("main"))
	testenv.MustFail(t, err, events.ClassConflict, events.Permanent)
	w.sync("")
	if testenv.Must(w.volume.RemoveRef(t.Context(), w.refRemoval("main")))(t) {
		t.Error("there was a name for it")
	}
	store := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t)
	if refs := testenv.Must(store.refs())(t); len(refs) != 1 {
		t.Errorf("the store holds %v", refs)
	}
	w.mustBeSound(widgets, commit)
}

func TestStaleOrCrashedRemovalOfARef(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"fenced", "listed", "confirmed"} {
		w := newWorld(t)
		w.create(map[string]string{"a": "1"})
		commit := w.commit("v1", gitserver.Edit{Write: map[string]string{"v": "1"}})
		w.sync("")
		w.sync("v1")
		slow := w.open(w.volume.Root(), Config{})
		slow.cfg.Step = func(at string) {
			if at == step {
				w.sync("v1")
			}
		}
		req := w.refRemoval("v1")
		req.Force = true
		_, err := slow.RemoveRef(t.Context(), req)
		if step == "fenced" && err == nil {
			t.Errorf("%s: no error", step)
		}
		testenv.MustFail(t, err, events.ClassBusy, events.Contention)
		w.mustBeSound(widgets+"@v1", commit)

		slow.cfg.Step = func(at string) {
			if at == step {
				panic("died")
			}
		}
		func() {
			defer func() { _ = recover() }()
			req.Fence = w.fence.Add(1)
			_, _ = slow.RemoveRef(t.Context(), req)
			t.Error("it did not die")
		}()
		w.mustBeSound(widgets+"@v1", commit)
		slow.cfg.Step = nil
		req.Fence = w.fence.Add(1)
		if !testenv.Must(slow.RemoveRef(t.Context(), req))(t) {
			t.Errorf("%s: the removal was not taken up again", step)
		}
	}
}

// The plain name is removed with its ref only on request, and the next sync publishes it again.
func TestRemovePlainName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	main := w.create(map[string]string{"a": "1"})
	dev := w.commit("dev", gitserver.Edit{Write: map[string]string{"b": "1"}})
	plain := w.sync("")
	other := w.sync("dev")
	req := w.refRemoval("main")
	req.Force, req.Plain = true, true
	if !testenv.Must(w.volume.RemoveRef(t.Context(), req))(t) {
		t.Error("nothing was removed")
	}
	if isThere(t, w.path(widgets)) {
		t.Error("the plain name is still there")
	}
	w.mustBeSound(plain.Tree, main) // within its grace period
	w.mustBeSound(other.Path, dev)
	w.mustVerify()
	if p, ok, err := w.volume.Published(repoPath(t, widgets)); err != nil || !ok || !p.Plain.IsZero() || len(p.Commits) != 1 {
		t.Errorf("published: %+v, %v, %v", p, ok, err)
	}
	w.sync("")
	w.mustBeSound(widgets, main)
	w.mustVerify()
}

// A sync that crashes right after it has published a new default branch has not recorded it.
func TestRemoveRefKeepsOtherPlainName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	trunk := w.commit("trunk", gitserver.Edit{Write: map[string]string{"b": "1"}})
	testenv.Must(0, w.git.SetHead(widgets, "trunk"))(t)
	w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	b, _, err := f.readBinding()
	b.Default = testenv.Must(events.ParseRef("main"))(t)
	testenv.Must(0, errors.Join(err, f.writeBinding(b)))(t)
	req := w.refRemoval("main")
	req.Force, req.Plain = true, true
	testenv.Must(w.volume.RemoveRef(t.Context(), req))(t)
	w.mustBeSound(widgets, trunk)
}
