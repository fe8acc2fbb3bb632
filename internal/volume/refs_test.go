package volume

import (
	"errors"
	"os"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/tree"
)

func TestNamesOfOtherRefs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	feature := w.commit("feature/x", gitserver.Edit{Parent: first, Write: map[string]string{"a": "feature"}})
	testenv.Must(0, w.git.Tag(t.Context(), widgets, "v1", first))(t)
	w.push(map[string]string{"a": "2"})

	main, branch, tag := w.sync(""), w.sync("feature/x"), w.sync("refs/tags/v1")

	if main.Path != "acme/widgets" || branch.Path != "acme/widgets@feature%2Fx" || tag.Path != "acme/widgets@refs%2Ftags%2Fv1" {
		t.Errorf("paths %q, %q, %q", main.Path, branch.Path, tag.Path)
	}
	if tag.After != first {
		t.Errorf("the annotated tag came down to %s, want the commit %s", tag.After, first)
	}
	w.mustBeSound(main.Path, main.After)
	w.mustBeSound(branch.Path, feature)
	w.mustBeSound(tag.Path, first)
	if again := w.sync("refs/tags/v1"); again.Published {
		t.Error("the tag was published again")
	}
}

func TestLongNamesOfRefs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.sync("")
	for i, name := range []string{strings.Repeat("renovate/", 40) + "x", strings.Repeat("renovate/", 40) + "y", strings.Repeat("é", 120)} {
		commit := w.commit(name, gitserver.Edit{Parent: first, Write: map[string]string{"a": name}})
		ref := testenv.Must(events.ParseRef(name))(t)
		res := w.sync(name)
		if res.Path != widgets+"@"+ref.Suffix() || !strings.Contains(res.Path, "%.") {
			t.Errorf("path %q", res.Path)
		}
		w.mustBeSound(res.Path, commit)
		opened := testenv.Must(tree.Open(w.volume.Root(), widgets+"@"+strings.ReplaceAll(name, "/", "%2F")))(t)
		if opened.Commit() != commit || opened.Ref() != ref {
			t.Errorf("opened %s of %s", opened.Commit(), opened.Ref())
		}
		closeTree(t, opened)
		w.publishViews(res, map[string][]string{"all": {"**"}})
		w.mustRead(SubtreePath(res.Path, "argo", "all"), map[string]string{"a": name})
		opened = testenv.Must(tree.Open(w.volume.Root(), SubtreePath(widgets+"@"+strings.ReplaceAll(name, "/", "%2F"), "argo", "all")))(t)
		closeTree(t, opened)
		if located, ok, err := w.volume.Locate(repoPath(t, widgets), ref); err != nil || !ok || located.Name != res.Path {
			t.Errorf("located as %+v, %v", located, err)
		}
		if i == 0 {
			continue
		}
		unwanted := func(app string, of events.Ref, isDefault bool) bool { return of != ref }
		testenv.Must(0, w.volume.UnpublishSubtrees(t.Context(), repoPath(t, widgets), w.fence.Add(1), unwanted))(t)
		if _, err := os.Lstat(w.path(SubtreePath(res.Path, "argo", "all"))); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("unwanted views: %v", err)
		}
		w.deleteRef("refs/heads/" + name)
		testenv.Must(w.volume.RemoveRef(t.Context(), w.refRemoval(name)))(t)
		if _, err := os.Lstat(w.path(res.Path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a removed ref: %v", err)
		}
	}
}

func TestKnownCommitIsNotFetchedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.sync("")
	testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/twin", commit))(t)
	req := w.request("twin")
	req.Fence = w.fence.Load() // same fence and commit: the trees must not collide

	res := testenv.Must(w.volume.Sync(t.Context(), req))(t)

	w.mustBeSound(res.Path, commit)
	w.mustBeSound(widgets, commit)
	if stats := w.git.Stats(widgets); stats.UploadPacks != 1 {
		t.Errorf("%d fetches, want 1", stats.UploadPacks)
	}
}

func TestDefaultBranchRenamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.sync("")
	trunk := w.commit("trunk", gitserver.Edit{Parent: first, Write: map[string]string{"a": "trunk"}})
	w.sync("trunk")
	testenv.Must(0, w.git.SetHead(widgets, "trunk"))(t)

	res := w.sync("")

	if res.Ref.String() != "refs/heads/trunk" || res.Path != widgets || res.After != trunk {
		t.Errorf("unexpected result %+v", res)
	}
	w.mustBeSound(widgets, trunk)
	next := w.commit("trunk", gitserver.Edit{Write: map[string]string{"a": "next"}})
	w.sync("")
	w.mustBeSound(widgets, next)
	w.mustBeSound("acme/widgets@trunk", next) // its former name is updated too
	if old := w.sync("main"); old.Path != "acme/widgets@main" || old.After != first {
		t.Errorf("the former default branch: %+v", old)
	}
}

func TestBranchGivesWayToFolderOfBranches(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.commit("topic", gitserver.Edit{Parent: first, Write: map[string]string{"a": "topic"}})
	w.sync("topic")
	testenv.Must(0, w.git.DeleteRef(t.Context(), widgets, "refs/heads/topic"))(t)
	part := w.commit("topic/part", gitserver.Edit{Parent: first, Write: map[string]string{"a": "part"}})

	w.mustBeSound(w.sync("topic/part").Path, part)
}

func TestMissingRefs(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		arrange func(w *world)
		ref     string
		class   events.Class
	}{
		"no such branch": {func(*world) {}, "nowhere", events.ClassNoRef},
		"deleted branch": {func(w *world) {
			w.commit("gone", gitserver.Edit{})
			w.sync("gone")
			testenv.Must(0, w.git.DeleteRef(w.t.Context(), widgets, "refs/heads/gone"))(w.t)
		}, "gone", events.ClassNoRef},
		"last branch deleted": {func(w *world) {
			testenv.Must(0, w.git.DeleteRef(w.t.Context(), widgets, "refs/heads/main"))(w.t)
		}, "", events.ClassNoRef},
		"no such repository": {func(w *world) { testenv.Must(0, w.git.Delete(widgets))(w.t) }, "", events.ClassNotFound},
		"tag of a tree": {func(w *world) {
			testenv.Must(w.git.Git(w.t.Context(), widgets, "", "tag", "odd", "HEAD^{tree}"))(w.t)
		}, "refs/tags/odd", events.ClassNoRef},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			commit := w.create(map[string]string{"a": "1"})
			w.sync("")
			tc.arrange(w)

			_, err := w.trySync(tc.ref)

			testenv.MustFail(t, err, tc.class, events.Permanent)
			w.mustBeSound(widgets, commit)
		})
	}
}

func TestEmptyRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	testenv.Must(0, w.git.CreateEmpty(t.Context(), widgets))(t)
	_, err := w.trySync("")
	testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)

	commit := w.push(map[string]string{"a": "1"})
	w.sync("")
	w.mustBeSound(widgets, commit)
}
