package volume

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// TestRandomHistories publishes commits of random changes, and checks each tree with Git. Trees are
// built, linked or recycled.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	for _, reuse := range []bool{false, true} {
		t.Run(fmt.Sprintf("reuse=%v", reuse), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.volume = w.open(t.TempDir(), Config{Grace: 1, ReuseTrees: reuse})
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			h := &editGenerator{files: map[string]string{}, rand: rand.New(rand.NewPCG(seed, 0))}
			edit := h.next(40)
			w.create(edit.Write)
			w.sync("")
			forward, commits := 0, testenv.Form(8, 25)
			for range commits {
				commit := w.commit(gitserver.Main, h.next(6))
				res := w.sync("")
				if res.After != commit || res.Full {
					t.Fatalf("unexpected result %+v", res)
				}
				if w.isRecycled() {
					forward++
				}
				w.mustBeSound(widgets, commit)
				w.mustRead(widgets, h.files)
				w.mustMatchGitDiff(res)
			}
			if reuse && forward < commits-5 || !reuse && forward > 0 {
				t.Errorf("%d of %d trees were recycled", forward, commits)
			}
		})
	}
}

// isRecycled reports whether the published tree was recycled. It marks the tree with an empty folder, which
// Git ignores.
func (w *world) isRecycled() bool {
	err := os.Mkdir(w.path(widgets, "was-here"), 0o755)
	if err != nil && !errors.Is(err, os.ErrExist) {
		w.t.Fatal(err)
	}
	return err != nil
}

// editGenerator generates random edits and tracks the existing files.
type editGenerator struct {
	files map[string]string
	rand  *rand.Rand
}

func (g *editGenerator) next(n int) gitserver.Edit {
	edit := gitserver.Edit{Write: map[string]string{}}
	for range n {
		path := g.path()
		if g.taken(path) {
			continue
		}
		if _, there := g.files[path]; there && g.rand.IntN(3) == 0 && len(g.files) > 5 {
			if edit.Write[path] == "" {
				edit.Delete = append(edit.Delete, path)
				delete(g.files, path)
			}
			continue
		}
		if containsString(edit.Delete, path) {
			continue
		}
		content := strings.Repeat(fmt.Sprintln(g.rand.IntN(10)), 1+g.rand.IntN(5))
		edit.Write[path], g.files[path] = content, content
	}
	return edit
}

func (g *editGenerator) path() string {
	path := fmt.Sprint("n", g.rand.IntN(12))
	for range g.rand.IntN(4) {
		path += fmt.Sprint("/n", g.rand.IntN(4))
	}
	return path
}

// taken reports whether a path is an ancestor or a descendant of an existing file's path.
func (g *editGenerator) taken(path string) bool {
	for other := range g.files {
		if strings.HasPrefix(other, path+"/") || strings.HasPrefix(path, other+"/") {
			return true
		}
	}
	return false
}

func containsString(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

func TestDamagedRecycledTreeIsRebuilt(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(tree string) error{
		"no manifest": func(tree string) error { return os.Remove(checkout.GitDirOf(tree).Manifest()) },
		"a damaged manifest": func(tree string) error {
			content, err := os.ReadFile(checkout.GitDirOf(tree).Manifest())
			if err != nil {
				return err
			}
			if err := os.Remove(checkout.GitDirOf(tree).Manifest()); err != nil {
				return err
			}
			return os.WriteFile(checkout.GitDirOf(tree).Manifest(), flipped(content, len(content)/2), 0o644)
		},
		"a file is gone":   func(tree string) error { return os.Remove(tree + "/dir/changes") },
		"a folder is gone": func(tree string) error { return os.RemoveAll(tree + "/dir") },
		"a folder is a link": func(tree string) error {
			if err := os.RemoveAll(tree + "/dir"); err != nil {
				return err
			}
			return os.Symlink("/tmp", tree+"/dir")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.volume = w.open(t.TempDir(), Config{Grace: 1, ReuseTrees: true})
			w.create(map[string]string{"dir/changes": "0", "dir/stays": "same"})
			first := w.sync("")
			w.push(map[string]string{"dir/changes": "1"})
			w.sync("") // retires the first tree
			testenv.Must(0, damage(w.path(first.Tree)))(t)
			commit := w.push(map[string]string{"dir/changes": "2"})
			w.sync("")
			w.mustRead(widgets, map[string]string{"dir/changes": "2", "dir/stays": "same"})
			w.mustBeSound(widgets, commit)
		})
	}
}

// TestRecycledTreeGetsNewGitDir modifies a tree's .git, as a crashed Git command of a user would.
func TestRecycledTreeGetsNewGitDir(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(t.TempDir(), Config{Grace: 1, ReuseTrees: true})
	first := w.create(map[string]string{"a": "0"})
	res := w.sync("")
	for name, content := range map[string]string{
		"refs/heads/main": first + "\n", "index.lock": "", "hooks/post-checkout": "#!/bin/sh\n", "info/exclude": "a\n",
	} {
		path := w.path(res.Tree, ".git", name)
		testenv.Must(0, os.MkdirAll(filepath.Dir(path), 0o755))(t)
		testenv.Must(0, os.WriteFile(path, []byte(content), 0o755))(t)
	}
	w.isRecycled()
	w.push(map[string]string{"a": "1"})
	w.sync("") // retires the first tree
	commit := w.push(map[string]string{"a": "2"})
	w.sync("")
	if !w.isRecycled() {
		t.Fatal("the tree was not recycled")
	}
	w.mustBeSound(widgets, commit)
	w.gitIn(widgets, "update-index", "--refresh")
	for _, name := range []string{"index.lock", "hooks/post-checkout", "info/exclude"} {
		if _, err := os.Lstat(w.path(widgets, ".git", name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
}

// TestRefsRecycleOwnTrees pushes to two unrelated refs in turn.
func TestRefsRecycleOwnTrees(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(t.TempDir(), Config{Grace: 1, ReuseTrees: true})
	w.create(map[string]string{"a": "0"})
	w.commit("next", gitserver.Edit{Write: map[string]string{"b": "0"}})
	mark := func(ref string) string { return "of-" + ref }
	for i := range 4 {
		for ref, name := range map[string]string{gitserver.Main: widgets, "next": widgets + "@next"} {
			w.commit(ref, gitserver.Edit{Write: map[string]string{mark(ref): fmt.Sprint(i)}})
			w.sync(ref)
			_, err := os.Lstat(w.path(name, "was", mark(ref)))
			if brought := err == nil; brought != (i > 1) {
				t.Errorf("sync %d of %s: brought forward: %v", i, ref, brought)
			}
			testenv.Must(0, os.MkdirAll(w.path(name, "was", mark(ref)), 0o755))(t)
		}
	}
}

func TestRecyclableTreesAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(t.TempDir(), Config{Grace: 1, ReuseTrees: true})
	w.create(map[string]string{"a": "0"})
	w.sync("")
	for i := range 8 {
		w.push(map[string]string{"a": fmt.Sprint(i + 1)})
		w.sync("")
	}
	if n := len(testenv.Must(disk.ReadDir(w.volume.folder(repoPath(t, widgets)).trees()))(t)); n > maxRecyclable+2 {
		t.Errorf("%d trees are kept", n)
	}
}
