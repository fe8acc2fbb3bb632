package tree

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"lockstep/events"
)

func opened(t *testing.T, tree *Tree, err error) *Tree {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tree.Close() })
	return tree
}

func TestOpenedByNameOrByResult(t *testing.T) {
	s := newSample(t)
	first := s.publish("acme/widgets", "1", "a", map[string]string{"README": "1"})
	byName, err := Open(s.root, "acme/widgets")
	opened(t, byName, err)
	s.publish("acme/widgets", "2", "b", map[string]string{"README": "2"})
	now, err := Open(s.root, "acme/widgets")
	opened(t, now, err)
	byResult, err := OpenResult(s.root, first)
	opened(t, byResult, err)
	ofView := first
	ofView.Type = events.ResultView
	byView, err := OpenResult(s.root, ofView)
	opened(t, byView, err)
	for _, tc := range []struct {
		name            string
		tree            *Tree
		commit, content string
	}{{"by name, before", byName, commit("a"), "1"}, {"by name", now, commit("b"), "2"}, {"by result", byResult, commit("a"), "1"}, {"by the result of a view", byView, commit("a"), "1"}} {
		content, err := os.ReadFile(filepath.Join(tc.tree.Dir(), "README"))
		if tc.tree.Commit() != tc.commit || tc.tree.Ref() != first.Ref || string(content) != tc.content || err != nil {
			t.Errorf("%s: %s of %s, README %q, %v", tc.name, tc.tree.Commit(), tc.tree.Ref(), content, err)
		}
		if !filepath.IsAbs(tc.tree.Dir()) {
			t.Errorf("%s: folder %s", tc.name, tc.tree.Dir())
		}
	}
}

func TestNamesOfEveryKind(t *testing.T) {
	s := newSample(t)
	deep := s.build("group/sub/widgets", "1", "a", nil)
	s.flip("Group/sub/widgets@v1%2Fx", deep.Tree) // spelled as first seen
	tree, err := Open(s.root, "Group/sub/widgets@v1%2Fx")
	opened(t, tree, err)
	view := s.build("group/sub/widgets", "2", "b", map[string]string{"a": "1"})
	view.Subtree = commit("c")
	ofView := filepath.Join(filepath.Dir(view.Tree), "2-"+view.Subtree)
	s.check(os.Rename(filepath.Join(s.root, view.Tree), filepath.Join(s.root, ofView)))
	view.Tree, view.Type, view.After = ofView, events.ResultView, commit("d")
	for _, view.Path = range []string{"Group/sub/widgets@~/app/view", "Group/sub/widgets@v1%2Fx~/a.pp/vi-ew"} {
		s.flip(view.Path, view.Tree)
		tree, err := Open(s.root, view.Path)
		if opened(t, tree, err); tree.Commit() != commit("b") {
			t.Errorf("%s is at %s", view.Path, tree.Commit())
		}
		tree, err = OpenResult(s.root, view)
		if opened(t, tree, err); tree.Commit() != commit("d") { // which has the same view
			t.Errorf("the result names %s", tree.Commit())
		}
	}
	long := strings.Repeat("n", 90)
	folder := ".lockstep/repos/g/" + (long + "%2F" + long + "%2F" + long)[:180] + "%0123456789abcdef/trees/1-" + commit("a")[:12]
	if err := checkTreePath(folder, repo(t, "g/"+long+"/"+long+"/"+long)); err != nil {
		t.Error(err)
	}
}

func repo(t *testing.T, s string) events.RepoPath {
	t.Helper()
	r, err := events.ParseRepoPath(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestNamesThatOpenNothing(t *testing.T) {
	s := newSample(t)
	r := s.publish("acme/widgets", "1", "a", nil)
	s.check(os.MkdirAll(filepath.Join(s.root, "acme/folder"), 0o755))
	for name, target := range map[string]string{
		"etc": "/etc", "above": "../..", "store": "../.lockstep/repos/acme/store/stores/1", "building": "../.lockstep/repos/acme/building/trees/.building-1",
		"other": "../" + r.Tree, "file": "widgets/README", "absolute": filepath.Join(s.root, r.Tree),
	} {
		s.check(os.Symlink(target, filepath.Join(s.root, "acme", name)))
	}
	for name, want := range map[string]error{
		"acme/missing": ErrNotPublished, "nobody/widgets": ErrNotPublished, "acme/widgets@v1": ErrNotPublished, "acme/folder": ErrNotPublished,
		"acme/etc": ErrNotPublished, "acme/above": ErrNotPublished, "acme/store": ErrNotPublished, "acme/building": ErrNotPublished,
		"acme/other": ErrNotPublished, "acme/file": ErrNotPublished, "acme/absolute": ErrNotPublished,
		"": events.ErrBadRepoPath, "acme": events.ErrBadRepoPath, "../acme/widgets": events.ErrBadRepoPath, "/acme/widgets": events.ErrBadRepoPath,
		".lockstep/repos": events.ErrBadRepoPath, "acme/widgets@": events.ErrBadRepoPath, "acme/widgets@v1/x": events.ErrBadRepoPath,
		"acme/widgets@../../etc": events.ErrBadRepoPath, "acme/widgets@~": events.ErrBadRepoPath, "acme/widgets@~/app": events.ErrBadRepoPath,
		"acme/widgets@~/app/view": ErrNotPublished, "acme/widgets@~/../view": events.ErrBadRepoPath, "acme/widgets@~/app/..": events.ErrBadRepoPath,
		"acme/widgets@~/app/view/x": events.ErrBadRepoPath, "acme/widgets@~app/view": events.ErrBadRepoPath, "acme/widgets@a/b~/app/view": events.ErrBadRepoPath,
		"acme/widgets~/app/view": ErrNotPublished, "acme/widgets@v~1": events.ErrBadRepoPath,
	} {
		if tree, err := Open(s.root, name); !errors.Is(err, want) {
			t.Errorf("%q: %v, %v; want %v", name, tree, err, want)
		}
	}
	if _, err := Open(filepath.Join(s.root, "nowhere"), "acme/widgets"); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotPublished) {
		t.Errorf("a root that is not there: %v", err)
	}
}

func TestResultsThatOpenNothing(t *testing.T) {
	s := newSample(t)
	good := s.publish("acme/widgets", "1", "a", nil)
	other := s.publish("acme/other", "1", "b", nil)
	s.check(os.Symlink("/etc", filepath.Join(s.root, ".lockstep/repos/acme/widgets/trees/7-aa")))
	for name, edit := range map[string]func(r *events.Result){
		"failed":                     func(r *events.Result) { r.Type = events.ResultFailed },
		"removed":                    func(r *events.Result) { r.Type = events.ResultRemoved },
		"no tree":                    func(r *events.Result) { r.Tree = "" },
		"no repository":              func(r *events.Result) { r.Repo = events.RepoPath{} },
		"an absolute path":           func(r *events.Result) { r.Tree = "/etc" },
		"a path that climbs":         func(r *events.Result) { r.Tree = ".lockstep/repos/acme/widgets/trees/../../../../../etc" },
		"dots in a tree's place":     func(r *events.Result) { r.Tree = ".lockstep/repos/acme/widgets/trees/.." },
		"another repository's tree":  func(r *events.Result) { r.Tree = other.Tree },
		"a tree that is being built": func(r *events.Result) { r.Tree = ".lockstep/repos/acme/widgets/trees/.building-1" },
		"a store":                    func(r *events.Result) { r.Tree = ".lockstep/repos/acme/widgets/stores/1" },
		"a path below a tree":        func(r *events.Result) { r.Tree += "/.git" },
		"a link that leads out":      func(r *events.Result) { r.Tree = ".lockstep/repos/acme/widgets/trees/7-aa" },
	} {
		r := good
		edit(&r)
		if tree, err := OpenResult(s.root, r); err == nil || errors.Is(err, ErrGone) {
			t.Errorf("%s: %v, %v", name, tree, err)
		}
	}
	for name, edit := range map[string]func(r *events.Result){
		"never there":    func(r *events.Result) { r.Tree = strings.Replace(r.Tree, "/1-", "/2-", 1) },
		"another commit": func(r *events.Result) { r.After = commit("c") },
	} {
		r := good
		edit(&r)
		if tree, err := OpenResult(s.root, r); !errors.Is(err, ErrGone) {
			t.Errorf("%s: %v, %v; want ErrGone", name, tree, err)
		}
	}
}

// The tree is recycled between reading its name and pinning it.
func TestRecycledWhileBeingOpened(t *testing.T) {
	for name, between := range map[string]func(s *sample, tree string){
		"thrown away": func(s *sample, tree string) { s.recycle(tree) },
		"another in its place": func(s *sample, tree string) {
			s.recycle(tree)
			s.build("acme/widgets", "1", "a", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSample(t)
			r := s.publish("acme/widgets", "1", "a", nil)
			v, err := openVolume(s.root)
			s.check(err)
			defer v.close()
			dir, err := v.dir.OpenRoot(r.Tree)
			s.check(err)
			between(s, r.Tree)
			lock, err := pin(dir)
			s.check(err)
			half := &Tree{dir: dir, pin: lock}
			defer half.Close()
			if err := v.checkInPlace(half, r.Tree); !errors.Is(err, ErrGone) {
				t.Errorf("got %v, want ErrGone", err)
			}
		})
	}
}

func TestOpenTreeBeingRecycled(t *testing.T) {
	s := newSample(t)
	first := s.publish("acme/widgets", "1", "a", nil)
	lock, err := os.OpenFile(filepath.Join(s.root, first.Tree, pinFile), os.O_RDWR, 0)
	s.check(err)
	defer lock.Close()
	s.check(unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	if _, err := OpenResult(s.root, first); !errors.Is(err, ErrGone) {
		t.Errorf("by result: %v, want ErrGone", err)
	}
	if _, err := Open(s.root, "acme/widgets"); !errors.Is(err, ErrGone) {
		t.Errorf("by name: %v, want ErrGone, after some tries", err)
	}
	s.publish("acme/widgets", "2", "b", nil)
	now, err := Open(s.root, "acme/widgets")
	opened(t, now, err)
}

func TestPinIsHeldUntilClose(t *testing.T) {
	s := newSample(t)
	r := s.publish("acme/widgets", "1", "a", nil)
	tree, err := Open(s.root, "acme/widgets")
	opened(t, tree, err)
	recycler, err := os.OpenFile(filepath.Join(s.root, r.Tree, pinFile), os.O_RDWR, 0)
	s.check(err)
	defer recycler.Close()
	if err := unix.Flock(int(recycler.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("locked a pinned tree: %v", err)
	}
	s.check(tree.Close())
	s.check(unix.Flock(int(recycler.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	if _, err := fs.Stat(tree.FS(), "."); err == nil {
		t.Error("the tree can be read after Close")
	}
}

func TestFS(t *testing.T) {
	s := newSample(t)
	r := s.publish("acme/widgets", "1", "a", map[string]string{"README": "1", "src/main.go": "2", "src/.gitkeep": "", ".github/x": "3"})
	for name, target := range map[string]string{"passwd": "/etc/passwd", "up": "../../../../../..", "inside": "src/main.go"} {
		s.check(os.Symlink(target, filepath.Join(s.root, r.Tree, name)))
	}
	tree, err := Open(s.root, "acme/widgets")
	fsys := opened(t, tree, err).FS()
	for _, name := range []string{"passwd", "up", "up/etc/passwd", ".git", ".git/lockstep-commit", ".GIT/lockstep-commit", "../x", "/etc/passwd", "missing"} {
		if file, err := fsys.Open(name); err == nil {
			t.Errorf("%s was opened: %v", name, file)
		}
		if content, err := fs.ReadFile(fsys, name); err == nil {
			t.Errorf("%s was read: %q", name, content)
		}
		if info, err := fs.Stat(fsys, name); err == nil {
			t.Errorf("%s was found: %v", name, info)
		}
	}
	if target, err := fs.ReadLink(fsys, "passwd"); target != "/etc/passwd" {
		t.Errorf("the link reads %q, %v", target, err)
	}
	if content, err := fs.ReadFile(fsys, "inside"); string(content) != "2" {
		t.Errorf("a link inside reads %q, %v", content, err)
	}
	for _, name := range []string{"passwd", "up"} { // as in TestFS
		s.check(os.Remove(filepath.Join(tree.Dir(), name)))
	}
	if err := fstest.TestFS(fsys, "README", "src/main.go", "src/.gitkeep", ".github/x", "inside"); err != nil {
		t.Error(err)
	}
	var walked []string
	err = fs.WalkDir(fsys, ".", func(path string, _ fs.DirEntry, err error) error { walked = append(walked, path); return err })
	if want := []string{".", ".github", ".github/x", "README", "inside", "src", "src/.gitkeep", "src/main.go"}; !slices.Equal(walked, want) || err != nil {
		t.Errorf("walked %q, %v", walked, err)
	}
}
