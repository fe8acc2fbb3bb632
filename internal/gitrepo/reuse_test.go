package gitrepo

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"lockstep/internal/gittest"
)

// TestRandomHistories publishes commits of random changes, and checks each tree with Git. Trees are
// built anew, linked or brought forward, as it comes.
func TestRandomHistories(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		t.Run(fmt.Sprintf("reuse=%v", reuse), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.volume = w.open(t.TempDir(), Config{Grace: 1, ReuseTrees: reuse})
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			h := &inventor{files: map[string]string{}, rand: rand.New(rand.NewPCG(seed, 0))}
			edit := h.next(40)
			w.create(edit.Write)
			w.sync("")
			forward := 0
			for range 25 {
				commit := w.commit(gittest.Main, h.next(6))
				res := w.sync("")
				if res.After != commit || res.Full {
					t.Fatalf("unexpected result %+v", res)
				}
				if w.wasSpare() {
					forward++
				}
				w.mustBeSound(widgets, commit)
				w.mustRead(widgets, h.files)
				w.mustMatchGitDiff(res)
			}
			if reuse && forward < 20 || !reuse && forward > 0 {
				t.Errorf("%d of 25 trees were brought forward", forward)
			}
		})
	}
}

// wasSpare reports whether the published tree is one that was published before, and signs it.
func (w *world) wasSpare() bool {
	signature := w.path(widgets, ".git", "was-here")
	_, err := os.Lstat(signature)
	must(0, os.WriteFile(signature, nil, 0o644))(w.t)
	return err == nil
}

// inventor makes up edits, and knows what files there are.
type inventor struct {
	files map[string]string
	rand  *rand.Rand
}

func (h *inventor) next(n int) gittest.Edit {
	edit := gittest.Edit{Write: map[string]string{}}
	for range n {
		path := h.path()
		if h.taken(path) {
			continue
		}
		if _, there := h.files[path]; there && h.rand.IntN(3) == 0 && len(h.files) > 5 {
			if edit.Write[path] == "" {
				edit.Delete = append(edit.Delete, path)
				delete(h.files, path)
			}
			continue
		}
		if containsString(edit.Delete, path) {
			continue
		}
		content := strings.Repeat(fmt.Sprintln(h.rand.IntN(10)), 1+h.rand.IntN(5))
		edit.Write[path], h.files[path] = content, content
	}
	return edit
}

func (h *inventor) path() string {
	path := fmt.Sprint("n", h.rand.IntN(12))
	for range h.rand.IntN(4) {
		path += fmt.Sprint("/n", h.rand.IntN(4))
	}
	return path
}

// taken reports whether a path lies above or below that of a file there is.
func (h *inventor) taken(path string) bool {
	for other := range h.files {
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

func TestASpareTreeThatIsDamagedIsBuiltAnew(t *testing.T) {
	for name, spoil := range map[string]func(tree string) error{
		"no manifest":      func(tree string) error { return os.Remove(gitDirOf(tree).manifest()) },
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
			w := newWorld(t)
			w.volume = w.open(t.TempDir(), Config{Grace: 1, ReuseTrees: true})
			w.create(map[string]string{"dir/changes": "0", "dir/stays": "same"})
			first := w.sync("")
			w.push(map[string]string{"dir/changes": "1"})
			w.sync("") // the first is spare now
			must(0, spoil(w.path(first.Tree)))(t)
			commit := w.push(map[string]string{"dir/changes": "2"})
			w.sync("")
			w.mustRead(widgets, map[string]string{"dir/changes": "2", "dir/stays": "same"})
			w.mustBeSound(widgets, commit)
		})
	}
}

func TestFewSparesAreKept(t *testing.T) {
	w := newWorld(t)
	w.volume = w.open(t.TempDir(), Config{Grace: 1, ReuseTrees: true})
	w.create(map[string]string{"a": "0"})
	w.sync("")
	for i := range 8 {
		w.push(map[string]string{"a": fmt.Sprint(i + 1)})
		w.sync("")
	}
	if n := len(must(readDir(w.volume.folder(repoPath(t, widgets)).trees()))(t)); n > keptSpares+2 {
		t.Errorf("%d trees are kept", n)
	}
}
