package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/checkout"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestAlteredViewsAreReplaced alters trees of views, or the files that they share with the whole tree. Verify finds each, the next
// publication replaces the trees, and readers of the old ones keep them.
func TestAlteredViewsAreReplaced(t *testing.T) {
	t.Parallel()
	views := map[string][]string{"dir": {"dir"}, "all": {"**"}, "other": {"other"}}
	for name, alter := range map[string]func(whole, view string) error{
		"a file of both": func(whole, _ string) error { return rewrite(whole + "/dir/a") },
		"a file that is copied": func(_, view string) error {
			return errors.Join(os.Remove(view+"/dir/a"), os.WriteFile(view+"/dir/a", []byte("2"), 0o644))
		},
		"another file":   func(_, view string) error { return os.WriteFile(view+"/dir/more", nil, 0o644) },
		"a file is gone": func(_, view string) error { return os.Remove(view + "/dir/a") },
		"the manifest":   func(_, view string) error { return os.WriteFile(checkout.GitDirOf(view).Manifest(), nil, 0o644) },
		"no .git":        func(_, view string) error { return os.RemoveAll(view + "/.git") },
		"no tree":        func(_, view string) error { return os.RemoveAll(view) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"dir/a": "1", "dir/b": "1", "other": "1"})
			res := w.sync("")
			w.publishViews(res, views)
			before := w.viewTrees(widgets, "dir", "other")
			w.mustVerify()
			testenv.Must(0, alter(w.path(res.Tree), w.path(before["dir"])))(t)
			if report := w.verify(true); report.Found == 0 {
				t.Errorf("report %+v", report)
			}
			res = w.sync("")
			set := w.viewRequest(res, views).Selections
			if ok := testenv.Must(w.volume.SubtreesPublished(repoPath(t, widgets), "argo", events.Ref{}, true, set))(t); ok {
				t.Error("nothing is to be published")
			}
			w.publishViews(res, views)
			w.mustRead(SubtreePath(widgets, "argo", "dir"), map[string]string{"dir/a": "1", "dir/b": "1"})
			w.mustRead(SubtreePath(widgets, "argo", "all"), map[string]string{"dir/a": "1", "dir/b": "1", "other": "1"})
			after := w.viewTrees(widgets, "dir", "other")
			if after["other"] != before["other"] || name != "no tree" && after["dir"] == before["dir"] {
				t.Errorf("trees %v, then %v", before, after)
			}
			w.viewsAfterGC(Config{Grace: 1})
			if left := w.viewsAfterGC(Config{Grace: 1}); len(left) != 3 {
				t.Errorf("left %v", left)
			}
			w.mustVerify()
		})
	}
}

// Verify reads every file of views, and repairs what it finds.
func TestVerifyFindsDamagedViews(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"dir/a": "1", "other": "1"})
	views := map[string][]string{"dir": {"dir"}}
	res := w.sync("")
	w.publishViews(res, views)
	file := w.path(w.viewTrees(widgets, "dir")["dir"], "dir/a")
	content := testenv.Must(os.Stat(file))(t)
	testenv.Must(0, errors.Join(os.Remove(file), os.WriteFile(file, []byte("2"), 0o644), os.Chtimes(file, content.ModTime(), content.ModTime())))(t)
	if report := w.verify(true); report.Found == 0 || len(report.Marked) != 1 {
		t.Errorf("report %+v", report)
	}
	w.publishViews(w.sync(""), views)
	w.mustRead(SubtreePath(widgets, "argo", "dir"), map[string]string{"dir/a": "1"})
	testenv.Must(0, os.RemoveAll(w.path(w.viewTrees(widgets, "dir")["dir"])))(t)
	if report := w.verify(true); report.Found == 0 {
		t.Errorf("a missing tree: %+v", report)
	}
	w.publishViews(w.sync(""), views)
	w.mustRead(SubtreePath(widgets, "argo", "dir"), map[string]string{"dir/a": "1"})
	w.mustVerify()
}

// A file that was touched, or replaced by a copy, in the whole tree is not shared with views.
func TestViewsShareNoTouchedFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"dir/a": "1", "dir/b": "1"})
	w.commit(gitserver.Main, gitserver.Edit{Exec: map[string]string{"dir/run": "1"}, Link: map[string]string{"dir/link": "a"}})
	res := w.sync("")
	want := treeWithModes(t, w.path(widgets))
	for _, name := range []string{"dir/a", "dir/run"} {
		testenv.Must(0, os.WriteFile(w.path(res.Tree, name), []byte("altered"), 0o644))(t)
	}
	testenv.Must(0, errors.Join(os.Remove(w.path(res.Tree, "dir/link")), os.Symlink("b", w.path(res.Tree, "dir/link"))))(t)
	w.publishViews(res, map[string][]string{"dir": {"dir"}})
	mustBeEqual(t, "dir", treeWithModes(t, w.path(SubtreePath(widgets, "argo", "dir"))), want)
}

// Beyond the file system's limit of links to one file, views have copies.
func TestViewsBeyondTheLimitOfLinks(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"dir/a": "1", "dir/b": "1"})
	res := w.sync("")
	links := t.TempDir()
	if filepath.VolumeName(links) != filepath.VolumeName(w.volume.Root()) {
		t.Skip("another file system")
	}
	for n := 0; ; n++ {
		if err := os.Link(w.path(res.Tree, "dir/a"), fmt.Sprintf("%s/%d", links, n)); err != nil {
			break
		}
		if n > 70_000 {
			t.Skip("the file system has no limit of links to one file")
		}
	}
	w.publishViews(res, map[string][]string{"dir": {"dir"}})
	w.mustRead(SubtreePath(widgets, "argo", "dir"), map[string]string{"dir/a": "1", "dir/b": "1"})
	w.mustVerify()
}
