package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

func TestNestedPathsConflict(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ first, second string }{
		"a path below":           {"acme/widgets", "acme/widgets/docs"},
		"a path above":           {"acme/widgets/docs", "acme/widgets"},
		"a path far below":       {"acme/widgets", "acme/widgets/a/b/c"},
		"below in another case":  {"acme/widgets", "ACME/Widgets/docs"},
		"a path above, but deep": {"acme/" + strings.Repeat(strings.Repeat("x", 90)+"/", 4) + "y", "acme/" + strings.Repeat(strings.Repeat("x", 90)+"/", 3) + strings.Repeat("x", 90)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"a": "1"})
			req := w.request("")
			req.Repo = repoPath(t, tc.first)
			testenv.Must(w.volume.Sync(t.Context(), req))(t)

			req.Repo = repoPath(t, tc.second)
			_, err := w.volume.Sync(t.Context(), req)

			testenv.MustFail(t, err, events.ClassConflict, events.Permanent)
		})
	}
}

func TestSimilarPathsDoNotConflict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	for _, path := range []string{"acme/widgets", "acme/widgets2/docs", "acme/widget", "g/sub/trees", "g/sub/lock", "g/subs", "acme/trees"} {
		req := w.request("")
		req.Repo = repoPath(t, path)
		testenv.Must(w.volume.Sync(t.Context(), req))(t)
		w.mustBeSound(path, commit)
	}
}

func TestPathIsBoundToOneRemote(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	testenv.Must(w.git.Create(t.Context(), "acme/other", map[string]string{"b": "1"}))(t)
	w.sync("")

	req := w.request("")
	req.URL = w.git.URL("acme/other")
	_, err := w.volume.Sync(t.Context(), req)
	testenv.MustFail(t, err, events.ClassConflict, events.Permanent)
	if !strings.Contains(err.Error(), "acme/widgets") || !strings.Contains(err.Error(), "acme/other") {
		t.Errorf("the error does not name both: %v", err)
	}
	w.mustBeSound(widgets, commit)
}

func TestSpellingsOfOnePath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	req := w.request("")
	req.Repo = repoPath(t, "Acme/Widgets")
	testenv.Must(w.volume.Sync(t.Context(), req))(t)

	res := w.sync("")

	if res.Path != "Acme/Widgets" || res.Published {
		t.Errorf("unexpected result %+v", res)
	}
	w.mustBeSound("Acme/Widgets", commit)
}

func TestForeignFilesAreNotReplaced(t *testing.T) {
	t.Parallel()
	for name, arrange := range map[string]func(t *testing.T, path string){
		"a clone": func(t *testing.T, path string) { testenv.Must(0, os.MkdirAll(filepath.Join(path, ".git"), 0o755))(t) },
		"a file":  func(t *testing.T, path string) { testenv.Must(0, os.WriteFile(path, []byte("mine"), 0o644))(t) },
		"a link":  func(t *testing.T, path string) { testenv.Must(0, os.Symlink("/tmp", path))(t) },
		"an owner": func(t *testing.T, path string) {
			testenv.Must(0, os.Remove(filepath.Dir(path)))(t)
			testenv.Must(0, os.Symlink(t.TempDir(), filepath.Dir(path)))(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"a": "1"})
			testenv.Must(0, os.Mkdir(w.path("acme"), 0o755))(t)
			arrange(t, w.path(widgets))
			before, _ := os.Lstat(w.path(widgets))

			_, err := w.trySync("")

			testenv.MustFail(t, err, events.ClassConflict, events.Permanent)
			if after, _ := os.Lstat(w.path(widgets)); before != nil && !os.SameFile(before, after) {
				t.Error("it was replaced")
			}
			if w.git.Stats(widgets).InfoRefs != 0 {
				t.Error("the remote was asked")
			}
		})
	}
}

func TestOpenVolume(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "new", "root")
	w := newWorld(t)
	v := w.open(root, Config{})
	if again := w.open(root, Config{}); again.ID() != v.ID() || v.ID() == w.volume.ID() || v.ID() == "" {
		t.Errorf("ids %q, %q, %q", v.ID(), again.ID(), w.volume.ID())
	}
	if entries := testenv.Must(os.ReadDir(filepath.Join(root, adminDir)))(t); len(entries) != 3 {
		t.Errorf("left behind: %v", entries)
	}
	testenv.Must(0, os.WriteFile(filepath.Join(root, adminDir, "volume"), []byte("\n"), 0o644))(t)
	_, err := OpenVolume(root, Config{})
	testenv.MustFail(t, err, events.ClassVolume, events.Permanent)
	_, err = OpenVolume(filepath.Join(root, adminDir, "volume", "x"), Config{})
	testenv.MustFail(t, err, events.ClassVolume, events.Retryable)
}

func TestForeignSuffixedNameIsNotReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.commit("x", gitserver.Edit{})
	testenv.Must(0, os.Symlink("/tmp", w.path("acme/widgets@x")))(t)
	fetched := w.git.Stats(widgets).UploadPacks
	_, err := w.trySync("x")
	testenv.MustFail(t, err, events.ClassConflict, events.Permanent)
	if w.git.Stats(widgets).UploadPacks != fetched {
		t.Error("it was fetched for nothing")
	}
	if target := testenv.Must(os.Readlink(w.path("acme/widgets@x")))(t); target != "/tmp" {
		t.Errorf("it was replaced: %s", target)
	}
	mustBeTidy(t, w)
}

// TestUnusedRemoteCanBeRebound first binds the path to a remote that never answers.
func TestUnusedRemoteCanBeRebound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	req := w.request("")
	req.URL, req.Repo = w.git.URL("acme/gadgets"), repoPath(t, "acme/WIDGETS")
	_, err := w.volume.Sync(t.Context(), req)
	testenv.MustFail(t, err, events.ClassNotFound, events.Permanent)

	if res := w.sync(""); res.Path != widgets {
		t.Errorf("published as %s", res.Path)
	}

	w.mustBeSound(widgets, commit)
	req.Fence = w.fence.Add(1)
	_, err = w.volume.Sync(t.Context(), req)
	testenv.MustFail(t, err, events.ClassConflict, events.Permanent)
}

// TestConcurrentBindOfNestedPaths has many holders bind nested paths for the first time at once.
func TestConcurrentBindOfNestedPaths(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for round := range 20 {
		var bound atomic.Int32
		var g errgroup.Group
		for _, path := range []string{"g%d/sub", "g%d/sub/a", "G%d/Sub/a/b", "g%d/SUB/a/b/c"} {
			v := w.open(w.volume.Root(), Config{})
			repo := repoPath(t, fmt.Sprintf(path, round))
			g.Go(func() error {
				f := v.folder(repo)
				err := f.record(t.Context(), 1)
				if err == nil {
					_, err = v.bind(t.Context(), f, repo, "https://example.org/"+repo.Key(), 1)
				}
				if err == nil {
					bound.Add(1)
				} else if events.ClassOf(err) == events.ClassConflict {
					err = nil
				}
				return err
			})
		}
		testenv.Must(0, g.Wait())(t)
		if bound.Load() != 1 {
			t.Errorf("%d paths were bound", bound.Load())
		}
	}
}
