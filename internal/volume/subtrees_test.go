package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/internal/view"
	"lockstep/tree"
)

// viewRequest is a request to publish the views of argo of a synced ref.
func (w *world) viewRequest(res SyncResult, views map[string][]string) SubtreesRequest {
	w.t.Helper()
	return SubtreesRequest{
		Repo: repoPath(w.t, widgets), App: "argo", Path: res.Path, Tree: res.Tree, Selections: testenv.Must(view.New(views))(w.t), Fence: w.fence.Add(1),
	}
}

func (w *world) publishViews(res SyncResult, views map[string][]string) {
	w.t.Helper()
	testenv.Must(0, w.volume.PublishSubtrees(w.t.Context(), w.viewRequest(res, views)))(w.t)
}

// viewTrees returns the trees that views of argo link to, relative to the root.
func (w *world) viewTrees(path string, views ...string) map[string]string {
	w.t.Helper()
	return testenv.Must(w.volume.Subtrees(repoPath(w.t, widgets), path, "argo", views))(w.t)
}

func mustBeEqual(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for name, is := range got {
		if want[name] != is {
			t.Errorf("%s: %q is %q, want %q", what, name, is, want[name])
		}
	}
	for name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("%s: %q is missing", what, name)
		}
	}
}

// A view's tree has what git sparse-checkout checks out, with the same types and permissions.
func TestViewTreesAreThoseOfGitSparseCheckout(t *testing.T) {
	t.Parallel()
	views := map[string][]string{
		"folder": {"docs/guide"}, "file": {"README"}, "missing": {"nothing/here"}, "all": {"**"}, "code": {"**/*.go"}, "link": {"link"},
		"two": {"docs", "lib/*/x"}, "overlap": {"docs", "docs/guide", "docs/**"}, "mode": {"run.sh"}, "inside": {"lib/"}, "class": {"[l-r]*"},
		"odd": {`we\[ird`, "sp ace"}, "deep": {"a/**/z"}, "bytes": {"*/??raw"}, "dot": {".hidden"}, "links": {"link*", "**/to-folder"},
	}
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			testenv.Must(w.git.CreateAs(t.Context(), format, widgets, map[string]string{
				"README": "1", "docs/guide/a": "1", "docs/b.go": "1", "lib/x": "1", "lib/y/x": "1", "lib/y/z": "1", "we[ird/f": "1", "sp ace/f": "1",
				"a/z": "1", "a/b/c/z/f": "1", "c/\xff\xferaw": "1", ".hidden/f": "1", "a.b/x": "1", "docs-old/x": "1", "docs.go": "1", "lib.c": "1", "lib0": "",
			}))(t)
			w.commit(gitserver.Main, gitserver.Edit{
				Exec: map[string]string{"run.sh": "1", "a/b.go": "1"}, Link: map[string]string{"link": "README", "lib/to-folder": "../docs"},
			})
			w.publishViews(w.sync(""), views)
			sparse := t.TempDir()
			git := func(stdin string, args ...string) {
				t.Helper()
				testenv.Must(gitserver.Git(t.Context(), sparse, stdin, args...))(t)
			}
			git("", "clone", "-q", w.git.Dir(widgets), ".")
			for name, paths := range views {
				git("/"+strings.Join(paths, "\n/")+"\n", "sparse-checkout", "set", "--no-cone", "--stdin")
				mustBeEqual(t, name, treeWithModes(t, w.path(SubtreePath(widgets, "argo", name))), treeWithModes(t, sparse))
			}
			w.mustVerify()
		})
	}
}

func TestEqualViewsShareATree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"api/a": "1", "web/a": "1", "README": "1"})
	views := map[string][]string{"api": {"api"}, "same": {"api/a"}, "web": {"web"}}
	first := w.sync("")
	w.publishViews(first, views)
	one := w.viewTrees(widgets, "api", "same", "web")
	if one["api"] != one["same"] || one["api"] == one["web"] {
		t.Errorf("trees %v", one)
	}
	if got := testenv.Must(os.Stat(w.path(one["api"], "api/a")))(t); !os.SameFile(got, testenv.Must(os.Stat(w.path(first.Tree, "api/a")))(t)) {
		t.Error("the file is no hard link")
	}
	built := testenv.Must(os.Stat(w.path(one["api"])))(t)
	w.push(map[string]string{"web/a": "2", "README": "2"})
	second := w.sync("")
	w.publishViews(second, views)
	two := w.viewTrees(widgets, "api", "web")
	if two["api"] != one["api"] || !os.SameFile(built, testenv.Must(os.Stat(w.path(two["api"])))(t)) || two["web"] == one["web"] {
		t.Errorf("trees %v, then %v", one, two)
	}
	w.commit("dev", gitserver.Edit{Parent: first.After, Write: map[string]string{"README": "3"}})
	w.publishViews(w.sync("dev"), map[string][]string{"all-web": {"web"}, "back": {"web", "nothing"}})
	if dev := w.viewTrees(widgets+"@dev", "all-web", "back"); dev["all-web"] != one["web"] || dev["back"] != one["web"] {
		t.Errorf("another ref has %v, want the tree of the first commit %s", dev, one["web"])
	}
	opened := testenv.Must(tree.Open(w.volume.Root(), widgets+"@dev~/argo/back"))(t)
	defer opened.Close()
	if content := testenv.Must(fs.ReadFile(opened.FS(), "web/a"))(t); string(content) != "1" {
		t.Errorf("read %q", content)
	}
	if opened.Pin() == nil || opened.Commit() != first.After {
		t.Errorf("opened at %s, pin %v", opened.Commit(), opened.Pin())
	}
	w.mustVerify()
}

// A view's name is never that of a repository or of another ref.
func TestViewNamesAreNotAmbiguous(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	for _, repo := range []string{"acme/widgets~", "acme/widgets~argo"} {
		w.createAt(repo, map[string]string{"other": "1"})
		w.syncAt(repo, "")
	}
	w.publishViews(w.sync(""), map[string][]string{"x": {"a"}})
	w.mustRead("acme/widgets~", map[string]string{"other": "1"})
	w.mustRead("acme/widgets~argo", map[string]string{"other": "1"})
	w.mustRead("acme/widgets@~/argo/x", map[string]string{"a": "1"})
	long := strings.Repeat("r", 150)
	w.commit(long, gitserver.Edit{Write: map[string]string{"a": "2"}})
	req := w.viewRequest(w.sync(long), map[string][]string{strings.Repeat("v", 100): {"a"}})
	req.App = strings.Repeat("a", 100)
	testenv.Must(0, w.volume.PublishSubtrees(t.Context(), req))(t)
	w.mustRead(SubtreePath(widgets+"@"+long, req.App, strings.Repeat("v", 100)), map[string]string{"a": "2"})
}

// The files of all trees that are built at once are limited; equal views count once.
func TestTooManyFilesInViewTrees(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	names := []string{"a", "b", "c", "d", "e"}
	w.create(map[string]string{"a": "1", "b": "1", "c": "1", "d": "1", "e": "1"})
	res, views := w.sync(""), map[string][]string{"all": {"*"}, "whole": {"**"}}
	for set := 1; set < 1<<len(names); set++ { // of 80 files
		for i, name := range names {
			if set&(1<<i) != 0 {
				views[fmt.Sprint("v", set)] = append(views[fmt.Sprint("v", set)], name)
			}
		}
	}
	w.volume.cfg.MaxTreeFiles = 7
	testenv.MustFail(t, w.volume.PublishSubtrees(t.Context(), w.viewRequest(res, views)), events.ClassQuota, events.Permanent)
	if isThere(t, w.path(widgets+"@~")) {
		t.Error("views are published")
	}
	w.volume.cfg.MaxTreeFiles = 8
	w.publishViews(res, views)
	w.mustRead(SubtreePath(widgets, "argo", "v3"), map[string]string{"a": "1", "b": "1"})
	if left := w.viewsAfterGC(Config{}); len(left) != 31 {
		t.Errorf("left %v", left)
	}
}

// viewsAfterGC cleans up as after the grace period, and returns the trees of views that are left.
func (w *world) viewsAfterGC(cfg Config) (trees []string) {
	w.t.Helper()
	v := w.open(w.volume.Root(), cfg)
	testenv.Must(v.GC(w.t.Context(), GCRequest{Repo: repoPath(w.t, widgets), Fence: w.fence.Add(1)}))(w.t)
	return subtreesIn(w.t, v.folder(repoPath(w.t, widgets)))
}

// subtreesIn returns the names of a repository's subtrees.
func subtreesIn(t *testing.T, f folder) (trees []string) {
	t.Helper()
	for _, entry := range testenv.Must(disk.ReadDir(f.trees()))(t) {
		if checkout.SelectionOf(entry.Name()) != "" {
			trees = append(trees, entry.Name())
		}
	}
	return trees
}

func TestViewTreesAreRetired(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"api/a": "1", "web/a": "1"})
	views := map[string][]string{"api": {"api"}, "web": {"web"}}
	w.publishViews(w.sync(""), views)
	old := w.viewTrees(widgets, "api", "web")
	latest := Horizon{Latest: "5-0", Unsettled: "1-0"}
	named := Config{Grace: 1, Results: func(context.Context) (Horizon, error) { return latest, nil }}
	w.volume = w.open(w.volume.Root(), Config{Results: named.Results})
	w.push(map[string]string{"api/a": "2"})
	w.publishViews(w.sync(""), views)
	if got := w.viewsAfterGC(Config{Results: named.Results}); len(got) != 3 {
		t.Errorf("a tree of a view has gone before its grace: %v", got)
	}
	pinned := testenv.Must(tree.OpenResult(w.volume.Root(), events.Result{
		Type: events.ResultView, Repo: repoPath(t, widgets), Tree: old["api"], Subtree: checkout.SelectionOf(old["api"]), After: strings.Repeat("a", 40),
	}))(t)
	if got := w.viewsAfterGC(Config{Grace: 1}); len(got) != 3 {
		t.Errorf("a pinned tree has gone: %v", got)
	}
	closeTree(t, pinned)
	if got := w.viewsAfterGC(named); len(got) != 3 {
		t.Errorf("a tree that a result may name has gone: %v", got)
	}
	latest.Unsettled = ""
	if w.open(w.volume.Root(), named).IsTidy(repoPath(t, widgets)) {
		t.Error("the repository is tidy, with an expired tree")
	}
	if got := w.viewsAfterGC(named); len(got) != 2 || slices.Contains(got, filepath.Base(old["api"])) {
		t.Errorf("left %v", got)
	}
	w.push(map[string]string{"api/a": "1"})
	w.publishViews(w.sync(""), views)
	w.mustRead(SubtreePath(widgets, "argo", "api"), map[string]string{"api/a": "1"})
	w.viewsAfterGC(Config{Grace: 1})
	if got := w.viewsAfterGC(Config{Grace: 1}); len(got) != 2 {
		t.Errorf("left %v", got)
	}
	if !w.open(w.volume.Root(), Config{}).IsTidy(repoPath(t, widgets)) {
		t.Error("the repository is not tidy")
	}
	w.mustRead(SubtreePath(widgets, "argo", "api"), map[string]string{"api/a": "1"})
}

func TestViewsThatChangeTheirDefinition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"api/a": "1", "web/a": "1"})
	res := w.sync("")
	w.publishViews(res, map[string][]string{"api": {"api"}, "web": {"web"}})
	w.publishViews(res, map[string][]string{"api": {"web"}, "new": {"*"}})
	w.mustRead(SubtreePath(widgets, "argo", "api"), map[string]string{"web/a": "1"})
	w.mustRead(SubtreePath(widgets, "argo", "new"), map[string]string{"web/a": "1", "api/a": "1"})
	if _, err := os.Lstat(w.path(SubtreePath(widgets, "argo", "web"))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a removed view is still published: %v", err)
	}
	repo := repoPath(t, widgets)
	set := testenv.Must(view.New(map[string][]string{"api": {"web"}, "new": {"*"}}))(t)
	if ok, err := w.volume.SubtreesPublished(repo, "argo", events.Ref{}, true, set); !ok || err != nil {
		t.Errorf("published: %v, %v", ok, err)
	}
	testenv.Must(0, os.Remove(w.path(SubtreePath(widgets, "argo", "new"))))(t)
	if ok := testenv.Must(w.volume.SubtreesPublished(repo, "argo", events.Ref{}, true, set))(t); ok {
		t.Error("a deleted name counts as published")
	}
	w.publishViews(res, set.Map())
	w.mustRead(SubtreePath(widgets, "argo", "new"), map[string]string{"web/a": "1", "api/a": "1"})
	testenv.Must(0, os.RemoveAll(w.path(widgets+"@~")))(t)
	w.push(map[string]string{"web/a": "2"})
	w.publishViews(w.sync(""), set.Map())
	w.mustRead(SubtreePath(widgets, "argo", "api"), map[string]string{"web/a": "2"})
	testenv.Must(0, errors.Join(os.Remove(w.path(SubtreePath(widgets, "argo", "api"))), os.Mkdir(w.path(SubtreePath(widgets, "argo", "api")), 0o755)))(t)
	w.push(map[string]string{"web/a": "3"})
	err := w.volume.PublishSubtrees(t.Context(), w.viewRequest(w.sync(""), set.Map()))
	testenv.MustFail(t, err, events.ClassConflict, events.Permanent)
	testenv.Must(0, os.Remove(w.path(SubtreePath(widgets, "argo", "api"))))(t)
	for _, wanted := range []bool{true, false} {
		err := w.volume.UnpublishSubtrees(t.Context(), repo, w.fence.Add(1), func(app string, ref events.Ref, isDefault bool) bool {
			if app != "argo" || ref.String() != "refs/heads/main" || !isDefault {
				t.Errorf("asked for %s, %s, %v", app, ref, isDefault)
			}
			return wanted
		})
		testenv.Must(0, err)(t)
		if _, err := os.Lstat(w.path(widgets + "@~")); wanted != (err == nil) {
			t.Errorf("wanted %v: %v", wanted, err)
		}
	}
	if ok, err := w.volume.SubtreesPublished(repo, "argo", events.Ref{}, true, set); ok || err != nil {
		t.Errorf("unpublished: %v, %v", ok, err)
	}
}

func TestViewsAreRemovedWithTheirRefAndRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.create(map[string]string{"a": "1"})
	w.commit("dev", gitserver.Edit{Parent: first, Write: map[string]string{"a": "2"}})
	views := map[string][]string{"all": {"**"}}
	w.publishViews(w.sync(""), views)
	w.publishViews(w.sync("dev"), views)
	w.deleteRef("refs/heads/dev")
	testenv.Must(w.volume.RemoveRef(t.Context(), w.refRemoval("dev")))(t)
	if _, err := os.Lstat(w.path(widgets + "@dev~")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the views of a removed ref: %v", err)
	}
	w.mustRead(SubtreePath(widgets, "argo", "all"), map[string]string{"a": "1"})
	pinned := testenv.Must(tree.Open(w.volume.Root(), SubtreePath(widgets, "argo", "all")))(t)
	removal := w.removal()
	removal.Force = true
	_, err := w.volume.Remove(t.Context(), removal)
	testenv.MustFail(t, err, events.ClassBusy, events.Contention)
	if _, err := os.Lstat(w.path(widgets + "@~")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the views of a removed repository: %v", err)
	}
	closeTree(t, pinned)
	removal.Fence = w.fence.Add(1)
	testenv.Must(w.volume.Remove(t.Context(), removal))(t)
	if entries := testenv.Must(disk.ReadDir(w.path("acme")))(t); len(entries) > 0 {
		t.Errorf("left %v", entries)
	}
	if left := subtreesIn(t, w.volume.folder(repoPath(t, widgets))); len(left) > 0 {
		t.Errorf("the trees of views: %v", left)
	}
}

// TestViewsOnAVolumeWithAnOddPath tidies below a folder whose name is no pattern.
func TestViewsOnAVolumeWithAnOddPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(filepath.Join(t.TempDir(), "data [1"), Config{})
	w.create(map[string]string{"api/a": "1"})
	w.publishViews(w.sync(""), map[string][]string{"api": {"api"}})
	w.push(map[string]string{"api/a": "2"})
	w.publishViews(w.sync(""), map[string][]string{"api": {"api"}})
	left := w.volume.folder(repoPath(t, widgets)).origin(subtreeFolder(widgets, "argo")) + disk.TempInfix + "1"
	testenv.Must(0, os.WriteFile(left, nil, 0o644))(t)
	w.viewsAfterGC(Config{Grace: 1})
	if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a temporary file of a crashed process is left: %v", err)
	}
}
