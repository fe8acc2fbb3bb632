package volume

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// A tree that is published again has a whole grace when it is replaced once more, and a GC is due that retires the other.
func TestReusedViewTreesHaveAWholeGrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"api/a": "1"})
	views, f := map[string][]string{"api": {"api"}}, w.volume.folder(repoPath(t, widgets))
	first := w.sync("")
	w.publishViews(first, views)
	reused := w.viewTrees(widgets, "api")["api"]
	w.push(map[string]string{"api/a": "2"})
	second := w.sync("")
	w.publishViews(second, views)
	w.viewsAfterGC(Config{})
	if !w.volume.IsTidy(repoPath(t, widgets)) {
		t.Error("a GC is due after a GC")
	}
	old := time.Now().Add(-48 * time.Hour)
	testenv.Must(0, os.Chtimes(f.mark(filepath.Base(reused)), old, old))(t)
	w.publishViews(first, views)
	if now := w.viewTrees(widgets, "api")["api"]; now != reused {
		t.Errorf("linked to %s, want %s", now, reused)
	}
	if w.volume.IsTidy(repoPath(t, widgets)) {
		t.Error("no GC is due, although a tree was replaced")
	}
	w.publishViews(second, views)
	if w.viewsAfterGC(Config{Grace: time.Hour}); !isThere(t, w.path(reused)) {
		t.Error("the tree had no grace")
	}
}

func unwanted(string, events.Ref, bool) bool { return false }

// Unpublishing does nothing about a folder without own links, and tidying removes it once it is empty.
func TestUnwantedFolderWithoutLinks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"api/a": "1"})
	w.publishViews(w.sync(""), map[string][]string{"api": {"api"}})
	f, note := w.volume.folder(repoPath(t, widgets)), w.path(SubtreePath(widgets, "argo", "note"))
	testenv.Must(0, os.WriteFile(note, nil, 0o644))(t)
	unpublish := func() time.Time {
		testenv.Must(0, w.volume.UnpublishSubtrees(t.Context(), repoPath(t, widgets), w.fence.Load(), unwanted))(t)
		return testenv.Must(os.Stat(f.tidied()))(t).ModTime()
	}
	if before := unpublish(); isThere(t, w.path(SubtreePath(widgets, "argo", "api"))) || !isThere(t, note) {
		t.Error("not unpublished, or more than that")
	} else if after := unpublish(); after != before {
		t.Error("tidied again")
	}
	testenv.Must(0, os.RemoveAll(filepath.Dir(note)))(t) // as a crashed holder
	w.viewsAfterGC(Config{})
	if isThere(t, w.path(widgets+"@~")) || isThere(t, f.origin(subtreeFolder(widgets, "argo"))) {
		t.Error("the folder or its note is left")
	}
}

// Views that are unpublished, from a folder that stays, are published again at the same tree.
func TestPublishedAgainInAFolderThatStayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"api/a": "1"})
	res, views := w.sync(""), map[string][]string{"api": {"api"}}
	w.publishViews(res, views)
	testenv.Must(0, os.WriteFile(w.path(SubtreePath(widgets, "argo", "note")), nil, 0o644))(t)
	testenv.Must(0, w.volume.UnpublishSubtrees(t.Context(), repoPath(t, widgets), w.fence.Load(), unwanted))(t)
	w.publishViews(res, views)
	w.mustRead(SubtreePath(widgets, "argo", "api"), map[string]string{"api/a": "1"})
}

// Each folder has a note of its own: a push changes one, and a damaged one concerns no other.
func TestNotesOfFolders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"api/a": "1"})
	views, f, repo := map[string][]string{"api": {"api"}}, w.volume.folder(repoPath(t, widgets)), repoPath(t, widgets)
	testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/dev", first))(t)
	w.publishViews(w.sync("dev"), views)
	w.publishViews(w.sync(""), views)
	mine, other := f.origin(subtreeFolder(widgets, "argo")), f.origin(subtreeFolder(widgets+"@dev", "argo"))
	before := testenv.Must(os.Stat(other))(t)
	w.push(map[string]string{"other": "1"})
	req := w.viewRequest(w.sync(""), views)
	for _, damage := range []string{"", "{", "\x00"} {
		if damage != "" {
			testenv.Must(0, os.WriteFile(mine, []byte(damage), 0o644))(t)
		}
		published := func() bool {
			return testenv.Must(w.volume.SubtreesPublished(repo, "argo", events.Ref{}, true, req.Selections))(t)
		}
		if published() {
			t.Errorf("%q: published", damage)
		}
		if testenv.Must(0, w.volume.PublishSubtrees(t.Context(), req))(t); !published() {
			t.Errorf("%q: not published", damage)
		}
	}
	if after := testenv.Must(os.Stat(other))(t); !os.SameFile(before, after) {
		t.Error("the note of another ref was written")
	}
	dev := testenv.Must(events.ParseRef("dev"))(t)
	if ok := testenv.Must(w.volume.SubtreesPublished(repo, "argo", dev, false, req.Selections))(t); !ok {
		t.Error("another ref is not published")
	}
}

// After a kill between the removal of names and that of their folder's note, a GC is due, which removes it.
func TestKilledWhileUnpublishing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"api/a": "1"})
	w.publishViews(w.sync(""), map[string][]string{"api": {"api"}})
	w.viewsAfterGC(Config{})
	note := w.volume.folder(repoPath(t, widgets)).origin(subtreeFolder(widgets, "argo"))
	w.volume.cfg.Step = func(step string) {
		if step == "subtrees unpublished" {
			panic(step)
		}
	}
	killed := panics(func() {
		_ = w.volume.UnpublishSubtrees(context.Background(), repoPath(t, widgets), w.fence.Load(), unwanted)
	})
	w.volume.cfg.Step = nil
	if !killed || !isThere(t, note) || w.volume.IsTidy(repoPath(t, widgets)) {
		t.Error("not killed, or no GC is due")
	}
	if w.viewsAfterGC(Config{}); isThere(t, note) || !w.volume.IsTidy(repoPath(t, widgets)) {
		t.Error("the note is left, or another GC is due")
	}
}

// The trees of views stay while names link to them, also without the whole tree.
func TestViewsOfARefWithoutAWholeTree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"api/a": "1"})
	w.sync("")
	testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/dev", first))(t)
	res := w.sync("dev")
	w.publishViews(res, map[string][]string{"api": {"api"}})
	testenv.Must(0, os.Remove(w.path(widgets+"@dev")))(t)
	for range 3 {
		w.viewsAfterGC(Config{Grace: 1})
	}
	if isThere(t, w.path(res.Tree)) {
		t.Error("the whole tree is still there")
	}
	w.mustRead(SubtreePath(widgets+"@dev", "argo", "api"), map[string]string{"api/a": "1"})
	testenv.Must(0, w.volume.UnpublishSubtrees(t.Context(), repoPath(t, widgets), w.fence.Load(), unwanted))(t)
	if isThere(t, w.path(widgets+"@dev~")) {
		t.Error("not unpublished")
	}
}

// A removal of the plain name that is killed after the names of views is completed by the next.
func TestKilledRemovalOfThePlainName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"api/a": "1"})
	w.publishViews(w.sync(""), map[string][]string{"api": {"api"}})
	w.deleteRef("refs/heads/main")
	w.volume.cfg.Step = func(step string) {
		if step == "subtrees unpublished" {
			panic(step)
		}
	}
	remove := func() {
		req := w.refRemoval("main")
		req.Plain = true
		testenv.Must(w.volume.RemoveRef(context.Background(), req))(t)
	}
	if !panics(remove) || !isThere(t, w.path(widgets)) || isThere(t, w.path(widgets+"@~")) {
		t.Error("the names of views were not first")
	}
	w.volume.cfg.Step = nil
	if remove(); isThere(t, w.path(widgets)) {
		t.Error("the plain name is left")
	}
}
