package volume

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// prepare prepares the next tree of main.
func (w *world) prepare() {
	w.t.Helper()
	w.prepareRef(gitserver.Main)
}

func (w *world) prepareRef(ref string) {
	w.t.Helper()
	if ok, err := w.volume.Prepare(w.t.Context(), w.prepareRequest(ref)); !ok || err != nil {
		w.t.Fatalf("prepared: %v, %v", ok, err)
	}
}

func (w *world) prepareRequest(ref string) PrepareRequest {
	return PrepareRequest{Repo: repoPath(w.t, widgets), Ref: testenv.Must(events.ParseRef(ref))(w.t), Fence: w.fence.Add(1)}
}

func (w *world) isPrepared(repo string) bool {
	return len(testenv.Must(w.volume.folder(repoPath(w.t, repo)).preparedTrees())(w.t)) > 0
}

// nextTree returns the path of the tree prepared for the next push to main.
func (w *world) nextTree() string {
	w.t.Helper()
	f := w.volume.folder(repoPath(w.t, widgets))
	trees := testenv.Must(f.preparedTrees())(w.t)
	if len(trees) != 1 {
		w.t.Fatalf("%d prepared trees", len(trees))
	}
	return f.next(trees[0].of)
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	testenv.Must(0, unix.Lstat(path, &st))(t)
	return st.Ino
}

// TestRandomHistories publishes commits of random changes, and checks each tree with Git. Trees are built or prepared.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	for _, prepared := range []bool{false, true} {
		t.Run(fmt.Sprintf("prepared=%v", prepared), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.volume = w.open(t.TempDir(), Config{Grace: 1})
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			h := &editGenerator{files: map[string]string{}, rand: rand.New(rand.NewPCG(seed, 0))}
			edit := h.next(40)
			w.create(edit.Write)
			w.sync("")
			for range testenv.Form(8, 25) {
				next := uint64(0)
				if prepared {
					w.prepare()
					next = inode(t, w.nextTree())
				}
				commit := w.commit(gitserver.Main, h.next(6))
				res := w.sync("")
				if res.After != commit || res.Full {
					t.Fatalf("unexpected result %+v", res)
				}
				if prepared && inode(t, w.path(res.Tree)) != next {
					t.Error("the prepared tree was not used")
				}
				w.mustBeSound(widgets, commit)
				w.mustRead(widgets, h.files)
				w.mustMatchGitDiff(res)
			}
		})
	}
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

// TestAlteredPreparedTree alters a prepared tree. The next tree must be right.
func TestAlteredPreparedTree(t *testing.T) {
	t.Parallel()
	for name, alter := range map[string]func(tree string) error{
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
		"a changed file is gone": func(tree string) error { return os.Remove(tree + "/dir/changes") },
		"another file is gone":   func(tree string) error { return os.Remove(tree + "/dir/stays") },
		"a folder is gone":       func(tree string) error { return os.RemoveAll(tree + "/dir") },
		"a folder is a link": func(tree string) error {
			if err := os.RemoveAll(tree + "/dir"); err != nil {
				return err
			}
			return os.Symlink("/tmp", tree+"/dir")
		},
		"a file is a folder": func(tree string) error {
			if err := os.Remove(tree + "/dir/stays"); err != nil {
				return err
			}
			return os.Mkdir(tree+"/dir/stays", 0o755)
		},
		"a file is replaced": func(tree string) error {
			if err := os.Remove(tree + "/dir/stays"); err != nil {
				return err
			}
			return os.WriteFile(tree+"/dir/stays", []byte("fake"), 0o644)
		},
		"another name":         func(tree string) error { return os.WriteFile(tree+"/dir/more", nil, 0o644) },
		"another folder":       func(tree string) error { return os.Mkdir(tree+"/more", 0o755) },
		"a hook":               func(tree string) error { return os.MkdirAll(tree+"/.git/hooks/post-checkout", 0o755) },
		"the whole tree":       os.RemoveAll,
		"a folder in its .git": func(tree string) error { return os.Mkdir(tree+"/.git/lockstep-index.lock", 0o755) },
		"its .git is a link":   func(tree string) error { return replaceByLink(tree + "/.git") },
		"its HEAD is a link":   func(tree string) error { return replaceByLink(tree + "/.git/HEAD") },
		"its objects are a link": func(tree string) error {
			return replaceByLink(tree + "/.git/objects")
		},
		"its index is a link":    func(tree string) error { return replaceByLink(tree + "/.git/index") },
		"its commit is shared":   func(tree string) error { return os.Link(tree+"/.git/lockstep-commit", elsewhere(tree)) },
		"its manifest is shared": func(tree string) error { return os.Link(tree+"/.git/lockstep-index", elsewhere(tree)) },
		"its refs are gone":      func(tree string) error { return os.RemoveAll(tree + "/.git/refs") },
		"its depth is a folder": func(tree string) error {
			return errors.Join(os.Remove(tree+"/.git/lockstep-depth"), os.Mkdir(tree+"/.git/lockstep-depth", 0o755))
		},
		"a wrong HEAD": func(tree string) error {
			return os.WriteFile(tree+"/.git/HEAD", []byte("ref: refs/heads/fake\n"), 0o644)
		},
		"a long commit": func(tree string) error { return os.Truncate(tree+"/.git/shallow", 1000) },
		"no mark":       func(tree string) error { return os.Remove(tree + "/.git/lockstep-prepared") },
		"a bad mark":    func(tree string) error { return os.WriteFile(tree+"/.git/lockstep-prepared", []byte("1"), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"dir/changes": "0", "dir/stays": "same", "above": "same"})
			w.sync("")
			w.prepare()
			next := w.nextTree()
			testenv.Must(0, alter(next))(t)
			commit := w.push(map[string]string{"dir/changes": "1"})
			before, _ := os.ReadFile(elsewhere(next))
			w.sync("")
			if now, _ := os.ReadFile(elsewhere(next)); string(now) != string(before) {
				t.Error("a file outside the tree was written")
			}
			testenv.Must(0, os.RemoveAll(elsewhere(next)))(t)
			w.mustRead(widgets, map[string]string{"dir/changes": "1", "dir/stays": "same", "above": "same"})
			w.mustBeSound(widgets, commit)
			for _, left := range []string{"more", ".git/hooks/post-checkout", ".git/lockstep-index.lock"} {
				if isThere(t, w.path(widgets, left)) {
					t.Errorf("%s is in the tree", left)
				}
			}
			w.mustVerify()
			mustBeTidy(t, w)
		})
	}
}

// replaceByLink moves a part of a prepared tree out of it, and links to it.
func replaceByLink(path string) error {
	tree, _, _ := strings.Cut(path, "/.git")
	return errors.Join(os.Rename(path, elsewhere(tree)), os.Symlink(elsewhere(tree), path))
}

// elsewhere returns a path outside the trees.
func elsewhere(tree string) string { return filepath.Join(tree, "..", "..", "elsewhere") }

// TestAlteredPublishedTree has a reader that alters the published tree before and after the next one is prepared, again
// and again. No later tree may show it. The reader cannot restore the time of a file that it writes.
func TestAlteredPublishedTree(t *testing.T) {
	t.Parallel()
	stays := func(i int) string { return fmt.Sprintf("dir%d/stays", i%6) }
	alterations := []func(tree, file string) error{
		func(tree, file string) error { return os.WriteFile(filepath.Join(tree, file), []byte("fake"), 0o644) },
		func(tree, file string) error { return os.Truncate(filepath.Join(tree, file), 1) },
		func(tree, file string) error { return os.Chmod(filepath.Join(tree, file), 0o600) },
		func(tree, file string) error { return os.Chmod(filepath.Join(tree, file), 0o666) },
		func(tree, file string) error { return os.Chmod(filepath.Join(tree, file), 0o755) },
		func(tree, file string) error {
			if err := os.Remove(filepath.Join(tree, file)); err != nil {
				return err
			}
			return os.Symlink("/etc/passwd", filepath.Join(tree, file))
		},
		func(tree, file string) error { return os.WriteFile(filepath.Join(tree, file+"-more"), nil, 0o644) },
		func(tree, file string) error { return os.MkdirAll(filepath.Join(tree, file+"-more", "deep"), 0o755) },
	}
	for _, prepared := range []bool{false, true} {
		t.Run(fmt.Sprintf("prepared=%v", prepared), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.volume = w.open(t.TempDir(), Config{Grace: 1})
			want := map[string]string{"changes": "0"}
			for i := range 6 {
				want[stays(i)] = "same"
			}
			w.create(want)
			res := w.sync("")
			for n := range testenv.Form(2, 12) * len(alterations) {
				tree := w.path(res.Tree)
				alter := alterations[n%len(alterations)]
				testenv.Must(0, alter(tree, stays(n)))(t)
				if prepared {
					w.prepare()
				}
				testenv.Must(0, alterations[(n+n/len(alterations))%len(alterations)](tree, stays(n+1)))(t)
				want["changes"] = fmt.Sprint(n + 1)
				commit := w.push(want)
				res = w.sync("")
				w.mustRead(widgets, want)
				for i := range 6 {
					if info := testenv.Must(os.Lstat(w.path(widgets, stays(i))))(t); info.Mode() != 0o644 {
						t.Errorf("push %d: %s has mode %v", n, stays(i), info.Mode())
					}
				}
				for i := range 6 {
					if isThere(t, w.path(widgets, stays(i)+"-more")) {
						t.Errorf("push %d: a folder that a reader made is in the next tree", n)
					}
				}
				if n%5 == 0 {
					w.mustBeSound(widgets, commit)
				}
			}
		})
	}
}

// TestPrepareStopsWhenWanted cancels preparations. On an idle machine each ends within 10 ms, on a busy one only the fastest.
func TestPrepareStopsWhenWanted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	testenv.Must(w.git.Generate(t.Context(), widgets, gitserver.Shape{Files: 3000, Bytes: 1 << 20}))(t)
	w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	wanted := errors.New("wanted")
	stopped := 0
	for round := 0; stopped < 3 && round < 100; round++ {
		req := w.prepareRequest(gitserver.Main)
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := w.volume.Prepare(ctx, req)
			done <- err
		}()
		for len(done) == 0 { // until it has begun, or has ended unseen
			if _, err := os.Lstat(f.build(req.Fence)); err == nil {
				break
			}
		}
		began := time.Now()
		cancel(wanted)
		if err := <-done; errors.Is(err, wanted) {
			stopped++
			t.Logf("stopped within %v", time.Since(began))
		} else {
			testenv.Must(0, err)(t)
			testenv.Must(0, f.limitPrepared(0))(t)
			f.emptyTrash()
		}
		mustBeTidy(t, w)
	}
	if stopped < 3 || w.isPrepared(widgets) {
		t.Errorf("%d preparations were stopped, want 3", stopped)
	}
}

// TestPreparedTreesGo has prepared trees that no sync will use. The next maintenance or sync discards them.
func TestPreparedTreesGo(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cfg     Config
		outdate func(w *world)
	}{
		"unused for long": {Config{KeepPrepared: 1}, func(w *world) {}},
		"another tree is published": {Config{}, func(w *world) {
			next := w.nextTree()
			aside := filepath.Join(w.volume.folder(repoPath(w.t, widgets)).dir, "aside")
			testenv.Must(0, os.Rename(next, aside))(w.t)
			w.push(map[string]string{"a": "2"})
			w.sync("")
			testenv.Must(0, os.Rename(aside, next))(w.t)
		}},
		"the published tree is damaged": {Config{}, func(w *world) {
			path := w.path(widgets, "a")
			testenv.Must(0, os.Chmod(path, 0o644))(w.t)
			testenv.Must(0, os.WriteFile(path, []byte("fake"), 0o644))(w.t)
			w.verify(true)
		}},
		"the ref is removed": {Config{}, func(w *world) {
			testenv.Must(0, unpublish(w.path(widgets)))(w.t)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"a": "1"})
			w.sync("")
			w.prepare()
			w.gc(true)
			if !w.isPrepared(widgets) {
				t.Fatal("there is no prepared tree")
			}
			tc.outdate(w)
			w.volume = w.open(w.volume.Root(), tc.cfg)
			w.gc(false)
			if w.isPrepared(widgets) {
				t.Error("the prepared tree is still there")
			}
			commit := w.push(map[string]string{"a": "3"})
			w.sync("")
			w.mustBeSound(widgets, commit)
		})
	}
}

// TestPrepareIsLimited refuses to prepare what is not published, prepared already, or near a limit.
func TestPrepareIsLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	refused := func(v *Volume, why string) {
		t.Helper()
		if ok, err := v.Prepare(t.Context(), w.prepareRequest(gitserver.Main)); ok || err != nil {
			t.Errorf("%s: prepared %v, %v", why, ok, err)
		}
	}
	refused(w.volume, "not on the volume")
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.gc(true)
	refused(w.open(w.volume.Root(), Config{MaxRepoBytes: 1 << 10}), "the repository is large")
	refused(w.open(w.volume.Root(), Config{MinFreeBytes: 1 << 60}), "the volume is full")
	refused(w.open(w.volume.Root(), Config{Links: checkout.LinksSkip}), "another link policy")
	before := w.volume.Usage(repoPath(t, widgets))
	w.prepare()
	if now := w.volume.Usage(repoPath(t, widgets)); now.Added <= before.Added {
		t.Errorf("usage %+v, and %+v before", now, before)
	}
	refused(w.volume, "prepared already")
	if got := w.gc(true); got.Usage.Trees != 1 || got.Usage.Bytes <= before.Bytes {
		t.Errorf("measured %+v, and %+v before", got.Usage, before)
	}
	for i := range maxPrepared + 3 {
		ref := fmt.Sprint("ref", i)
		w.commit(ref, gitserver.Edit{Write: map[string]string{"b": ref}})
		w.sync(ref)
		w.prepareRef(ref)
	}
	if n := len(testenv.Must(w.volume.folder(repoPath(t, widgets)).preparedTrees())(t)); n != maxPrepared {
		t.Errorf("%d trees are prepared", n)
	}
}

// TestPrepareByStaleHolder prepares with a lower fence than a sync before, and while a newer holder publishes.
func TestPrepareByStaleHolder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	stale := w.prepareRequest(gitserver.Main)
	w.push(map[string]string{"a": "2"})
	w.sync("")
	_, err := w.volume.Prepare(t.Context(), stale)
	testenv.MustFail(t, err, events.ClassBusy, events.Contention)
	slow := w.open(w.volume.Root(), Config{})
	slow.cfg.Step = func(step string) {
		if step == "linked" {
			w.push(map[string]string{"a": "3"})
			w.sync("")
		}
	}
	if ok, err := slow.Prepare(t.Context(), w.prepareRequest(gitserver.Main)); ok || err == nil {
		t.Errorf("prepared %v, %v", ok, err)
	}
	slow.AwaitDeletions()
	if w.isPrepared(widgets) {
		t.Error("a stale holder has prepared a tree")
	}
	commit := w.push(map[string]string{"a": "4"})
	w.sync("")
	w.mustBeSound(widgets, commit)
	mustBeTidy(t, w)
}

// TestRefsUseOwnPreparedTrees pushes to two unrelated refs in turn.
func TestRefsUseOwnPreparedTrees(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "0"})
	w.commit("next", gitserver.Edit{Write: map[string]string{"b": "0"}})
	refs := []string{gitserver.Main, "next"}
	for _, ref := range refs {
		w.sync(ref)
	}
	for i := range 3 {
		prepared := map[string]uint64{}
		for _, ref := range refs {
			w.prepareRef(ref)
			for _, tree := range testenv.Must(w.volume.folder(repoPath(t, widgets)).preparedTrees())(t) {
				path := w.volume.folder(repoPath(t, widgets)).next(tree.of)
				if built, _, _ := checkout.GitDirOf(path).RefAndCommit(); strings.HasSuffix(built, "/"+ref) {
					prepared[ref] = inode(t, path)
				}
			}
		}
		for _, ref := range refs {
			w.commit(ref, gitserver.Edit{Write: map[string]string{"of-" + ref: fmt.Sprint(i)}})
			if res := w.sync(ref); inode(t, w.path(res.Tree)) != prepared[ref] {
				t.Errorf("sync %d of %s did not use its prepared tree", i, ref)
			}
		}
	}
	if left := testenv.Must(disk.ReadDir(w.volume.folder(repoPath(t, widgets)).trash()))(t); len(left) > 0 {
		t.Errorf("discarded: %v", left)
	}
}

// TestPreparedGitDirIsBroughtUpToDate syncs with more history, or into another store, than the tree was prepared with.
func TestPreparedGitDirIsBroughtUpToDate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "0"})
	w.push(map[string]string{"a": "1"})
	w.sync("")
	for i, change := range []func(req *SyncRequest){
		func(req *SyncRequest) {},
		func(req *SyncRequest) { req.Depth = 3 },
		func(req *SyncRequest) { // into a new store
			store := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t)
			testenv.Must(0, os.WriteFile(filepath.Join(store.dir, refetchMark), nil, 0o644))(t)
		},
		func(req *SyncRequest) { req.Depth = events.DepthFull },
	} {
		w.prepare()
		next := inode(t, w.nextTree())
		commit := w.push(map[string]string{"a": fmt.Sprint(i + 2)})
		req := w.request("")
		change(&req)
		res := testenv.Must(w.volume.Sync(t.Context(), req))(t)
		if inode(t, w.path(res.Tree)) != next {
			t.Errorf("%d: the prepared tree was not used", i)
		}
		w.mustBeSound(widgets, commit)
		if isThere(t, w.path(widgets, ".git", "lockstep-prepared")) {
			t.Errorf("%d: the tree is marked as prepared", i)
		}
		commits := 0
		for range strings.Lines(w.gitIn(widgets, "log", "--format=%H")) {
			commits++
		}
		if want := []int{1, 3, 3, 6}[i]; commits < want {
			t.Errorf("%d: Git sees %d commits, want %d", i, commits, want)
		}
	}
	w.mustVerify()
}

// TestPreparedCopiesAreCounted prepares a tree of files that cannot be linked any more.
func TestPreparedCopiesAreCounted(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": string(make([]byte, 1<<20)), "b": "1"})
	res := w.sync("")
	w.gc(true)
	linkUntilFull(t, w.path(res.Tree, "a"))
	before := w.volume.Usage(repoPath(t, widgets)).Added
	w.prepare()
	if added := w.volume.Usage(repoPath(t, widgets)).Added - before; added < 1<<20 {
		t.Errorf("the copy is not counted: %d bytes", added)
	}
	if inode(t, filepath.Join(w.nextTree(), "a")) == inode(t, w.path(res.Tree, "a")) {
		t.Error("the file is not a copy")
	}
	commit := w.push(map[string]string{"b": "2"})
	w.sync("")
	w.mustBeSound(widgets, commit)
}

// linkUntilFull links a file until its file system allows no further link.
func linkUntilFull(t *testing.T, path string) {
	t.Helper()
	dir := t.TempDir()
	for i := range 70_000 {
		err := os.Link(path, filepath.Join(dir, fmt.Sprint(i)))
		if errors.Is(err, unix.EMLINK) {
			return
		}
		testenv.Must(0, err)(t)
	}
	t.Skip("this file system has no limit of links that can be reached")
}
