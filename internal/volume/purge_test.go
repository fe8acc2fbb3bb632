package volume

import (
	"fmt"
	"net/http"
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
	"lockstep/tree"
)

// purge begins a purge of acme/widgets.
func (w *world) purge() {
	w.t.Helper()
	testenv.Must(0, w.volume.Purge(w.t.Context(), repoPath(w.t, widgets), w.fence.Add(1), ""))(w.t)
}

func (w *world) left(repo string) PurgeLeft {
	w.t.Helper()
	return testenv.Must(w.volume.PurgeLeft(repoPath(w.t, repo)))(w.t)
}

// holders returns the stores of a repository and of its submodules, on the volume or in the trash, in which git finds an object.
func (w *world) holders(repo, id string) (holders []string) {
	w.t.Helper()
	f := w.volume.folder(repoPath(w.t, repo))
	dirs := append(testenv.Must(f.storeDirs())(w.t), testenv.Must(f.listParts())(w.t)...)
	for _, dir := range append(dirs, testenv.Must(disk.Glob(f.trash(), "*"))(w.t)...) {
		if _, err := gitserver.Git(w.t.Context(), dir, "", "cat-file", "-e", id); err == nil {
			holders = append(holders, dir)
		}
	}
	return holders
}

// mustLack checks that a purge is complete, and with git that no store of the repository has one of the objects.
func (w *world) mustLack(repo string, ids ...string) {
	w.t.Helper()
	w.volume.AwaitDeletions()
	for _, id := range ids {
		if holders := w.holders(repo, id); len(holders) > 0 {
			w.t.Errorf("%.12s is in %v", id, holders)
		}
	}
	if left := w.left(repo); len(left.Names)+len(left.Pinned)+len(left.Paths) > 0 {
		w.t.Errorf("left: %+v", left)
	}
}

// blob returns the ID of a file of a commit at the forge.
func (w *world) blob(commit, path string) string {
	w.t.Helper()
	return testenv.Must(w.git.Git(w.t.Context(), widgets, "", "rev-parse", commit+":"+path))(w.t)
}

// leak publishes a commit with a secret and another after it, and replaces both at the forge by a clean one.
func (w *world) leak(depth events.Depth) (clean, leaked, after string) {
	w.t.Helper()
	big := noise(w.t, 1<<10)
	clean = w.create(map[string]string{"a": "1", "big": strings.Repeat(big, 40), "dir/b": "same"})
	leaked = w.push(map[string]string{"dir/key": "secret", "big": strings.Repeat(big, 40) + "+"})
	w.syncDepth("", depth)
	after = w.push(map[string]string{"a": "2"})
	w.syncDepth("", depth)
	w.commit(gitserver.Main, gitserver.Edit{Parent: clean, Write: map[string]string{"a": "3", "big": strings.Repeat(big, 40) + "-"}})
	return clean, leaked, after
}

func TestPurge(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		for _, depth := range []events.Depth{1, events.DepthFull} {
			t.Run(fmt.Sprintf("%s/%s", format, depth), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				testenv.Must(0, w.git.CreateEmptyAs(t.Context(), format, widgets))(t)
				clean := w.push(map[string]string{"a": "1", "dir/b": "same"})
				leaked := w.push(map[string]string{"dir/key": "secret"})
				w.syncDepth("", depth)
				secret := w.blob(leaked, "dir/key")
				after := w.push(map[string]string{"a": "2"})
				w.syncDepth("", depth)
				head := w.commit(gitserver.Main, gitserver.Edit{Parent: clean, Write: map[string]string{"a": "3"}})
				old := w.syncDepth("", depth)
				w.prepare()
				if len(w.holders(widgets, leaked)) == 0 || len(w.holders(widgets, secret)) == 0 {
					t.Fatal("it is gone before it is purged")
				}
				w.purge()
				w.mustBeSound(widgets, head)
				if left := w.left(widgets); !slices.Equal(left.Names, []string{widgets}) || len(left.Paths) != 1 {
					t.Errorf("left: %+v", left)
				}
				if p, _, err := w.volume.Published(repoPath(t, widgets)); err != nil || !p.Incomplete[old.Ref] || p.Commits[old.Ref] != head {
					t.Errorf("a poll would not sync it: %+v, %v", p, err)
				}
				if trees := testenv.Must(disk.ReadDir(w.volume.folder(repoPath(t, widgets)).trees()))(t); len(trees) != 1 {
					t.Errorf("replaced trees are still there: %v", trees)
				}
				if ok, err := w.volume.Prepare(t.Context(), w.prepareRequest(gitserver.Main)); ok || err != nil {
					t.Errorf("prepared an old tree: %v, %v", ok, err)
				}
				next := w.syncDepth("", depth)
				if next.Tree == old.Tree || !next.Published || next.After != head || len(next.Files) > 0 {
					t.Errorf("the sync: %+v", next)
				}
				w.mustLack(widgets, leaked, after, secret)
				w.mustBeSound(widgets, head)
				if isThere(t, w.path(old.Tree)) {
					t.Error("the old tree is still there")
				}
				w.gc(false)
				mustVerify(t, w)
				mustBeTidy(t, w)
				last := w.push(map[string]string{"a": "4"})
				if again := w.syncDepth("", depth); again.After != last || again.Full {
					t.Errorf("the next sync: %+v", again)
				}
			})
		}
	}
}

// A reader that opens names finds a complete tree at any moment, also while the forge does not answer.
func TestPurgeWaitsForTheForge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, leaked, after := w.leak(events.DepthFull)
	head := w.sync("").After
	w.purge()
	w.git.Answer(widgets, http.StatusServiceUnavailable)
	if _, err := w.volume.Sync(t.Context(), w.request("")); events.ClassOf(err) != events.ClassServer {
		t.Errorf("%v, want an error of the server", err)
	}
	w.git.Answer(widgets, 0)
	w.mustBeSound(widgets, head)
	w.gc(false)
	w.mustBeSound(widgets, head)
	if left := w.left(widgets); len(left.Names) != 1 {
		t.Errorf("left: %+v", left)
	}
	w.sync("")
	w.mustLack(widgets, leaked, after)
	w.mustBeSound(widgets, head)
}

// TestPurgeKeepsPinnedTrees ends with the trees deleted once the pins are released.
func TestPurgeKeepsPinnedTrees(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, leaked, after := w.leak(events.DepthFull)
	replaced := testenv.Must(tree.Open(w.volume.Root(), widgets))(t)
	defer replaced.Close()
	head := w.sync("").After
	now := testenv.Must(tree.Open(w.volume.Root(), widgets))(t)
	defer now.Close()
	w.purge()
	for pins := 2; pins > 0; pins-- {
		w.sync("")
		if left := w.left(widgets); len(left.Pinned) != pins || len(left.Names) > 0 || w.volume.IsTidy(repoPath(t, widgets)) {
			t.Errorf("left: %+v, want %d pinned trees", left, pins)
		}
		closeTree(t, []*tree.Tree{now, replaced}[pins-1])
	}
	w.sync("")
	w.mustLack(widgets, leaked, after)
	w.mustBeSound(widgets, head)
}

// TestPurgeThatIsRepeatedGoesOn does not fetch again what is clean.
func TestPurgeThatIsRepeatedGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, leaked, after := w.leak(events.DepthFull)
	replaced := testenv.Must(tree.Open(w.volume.Root(), widgets))(t)
	defer replaced.Close()
	w.sync("")
	again := func() (stores []string) {
		testenv.Must(0, w.volume.Purge(t.Context(), repoPath(t, widgets), w.fence.Add(1), leaked))(t)
		w.sync("")
		return testenv.Must(w.volume.folder(repoPath(t, widgets)).storeDirs())(t)
	}
	first := again()
	if second := again(); !slices.Equal(first, second) {
		t.Errorf("stores %q, after a repeated purge %q", first, second)
	}
	closeTree(t, replaced)
	again()
	w.mustLack(widgets, leaked, after)
}

func TestPurgeEndsPinsIfForced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, leaked, after := w.leak(events.DepthFull)
	replaced := testenv.Must(tree.Open(w.volume.Root(), widgets))(t)
	defer replaced.Close()
	head := w.sync("").After
	w.purge()
	w.sync("")
	testenv.Must(w.volume.GC(t.Context(), GCRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1), Full: true, EndPins: true}))(t)
	if left := w.left(widgets); len(left.Pinned)+len(left.Paths)+len(left.Names) > 0 {
		t.Errorf("left: %+v", left)
	}
	w.mustLack(widgets, leaked, after)
	w.mustBeSound(widgets, head)
}

func TestPurgeOfSeveralRefs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	clean, leaked, _ := w.leak(events.DepthFull)
	w.sync("")
	side := w.commit("side", gitserver.Edit{Parent: clean, Write: map[string]string{"side": "1"}})
	w.sync("side")
	w.purge()
	w.sync("")
	if left := w.left(widgets); !slices.Equal(left.Names, []string{widgets + "@side"}) {
		t.Errorf("left: %+v", left)
	}
	w.sync("side")
	w.mustLack(widgets, leaked)
	w.mustBeSound(widgets+"@side", side)
	mustVerify(t, w)
}

func TestPurgeOfSubmodule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lib := w.simple()
	w.syncParts(events.SubmodulesRequired)
	fixed := w.commitAt("acme/lib", gitserver.Edit{Write: map[string]string{"l": "without", "dir/m": "more"}, Orphan: true})
	w.withParts(widgets, map[string]string{"sub": fixed}, map[string]string{"sub": "../lib.git"}, nil)
	w.syncParts(events.SubmodulesRequired)
	if len(w.holders(widgets, lib)) == 0 {
		t.Fatal("it is gone before it is purged")
	}
	w.purge()
	w.syncParts(events.SubmodulesRequired)
	w.mustLack(widgets, lib)
	w.mustVerify()
}

func TestPurgeOfMovedRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, leaked, after := w.leak(events.DepthFull)
	w.sync("")
	w.purge()
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	if left := w.left(gadgets); !slices.Equal(left.Names, []string{gadgets}) {
		t.Errorf("the purge was left behind: %+v", left)
	}
	req := w.request("")
	req.Repo, req.URL = repoPath(t, gadgets), w.git.URL(gadgets)
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	w.mustLack(gadgets, leaked, after)
	w.mustVerifyAt(gadgets)
	err := w.volume.Purge(t.Context(), repoPath(t, widgets), w.fence.Add(1), "")
	testenv.MustFail(t, err, events.ClassConflict, events.Permanent)
}

func TestPurgeOfLFSObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	clean := w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("fine")})
	w.push(map[string]string{"key.bin": server.Put("secret")})
	w.syncLFS(allLFS)
	w.commit(gitserver.Main, gitserver.Edit{Parent: clean, Write: map[string]string{"b": "1"}})
	w.syncLFS(allLFS)
	w.purge()
	w.syncLFS(allLFS)
	w.gc(true)
	if _, oid := gitserver.LFSPointer("fine"); !slices.Equal(w.lfsObjects(), []string{oid}) {
		t.Errorf("LFS objects: %v, want %s", w.lfsObjects(), oid)
	}
	w.mustVerify()
}

func TestPurgeOfViews(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	views := map[string][]string{"guide": {"dir/**"}}
	clean := w.create(map[string]string{"a": "1", "dir/b": "same"})
	leaked := w.push(map[string]string{"dir/key": "secret"})
	w.publishViews(w.sync(""), views)
	old := w.viewTrees(widgets, "guide")["guide"]
	w.commit(gitserver.Main, gitserver.Edit{Parent: clean, Write: map[string]string{"a": "2"}})
	w.purge()
	res := w.sync("")
	if left := w.left(widgets); !slices.Equal(left.Names, []string{SubtreePath(widgets, "argo", "guide")}) {
		t.Errorf("left: %+v", left)
	}
	w.publishViews(res, views)
	w.gc(false)
	if isThere(t, w.path(old)) {
		t.Error("the view's tree is still there")
	}
	w.mustLack(widgets, leaked)
	w.mustRead(w.viewTrees(widgets, "guide")["guide"], map[string]string{"dir/b": "same"})
}

// TestPurgeKilledAtEveryStep kills a process at each step of a purge and of the sync that completes it. Nothing published is lost, and the
// next sync completes it.
func TestPurgeKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	steps := []string{"purge begun", "moved", "confirmed", "flipped", "retired"}
	for i, step := range testenv.Form(steps[:1], steps) {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			_, leaked, after := w.leak(events.DepthFull)
			head := w.sync("").After
			url := ""
			if i > 0 {
				w.purge()
				url = w.git.URL(widgets)
			}
			cmd := w.dying(step, url)
			if i == 0 {
				cmd.Env = append(cmd.Env, "LOCKSTEP_TEST_DIE_PURGE="+leaked)
			}
			w.mustBeKilled(cmd, step)
			w.mustBeSound(widgets, head)
			if w.volume.IsTidy(repoPath(t, widgets)) && step != "retired" {
				t.Error("no GC would complete it")
			}
			w.sync("")
			w.gc(false)
			w.mustLack(widgets, leaked, after)
			w.mustBeSound(widgets, head)
			mustVerify(t, w)
			mustBeTidy(t, w)
		})
	}
}

func TestStalePurgeDoesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.leak(events.DepthFull)
	w.sync("")
	fence := w.fence.Load()
	w.sync("")
	err := w.volume.Purge(t.Context(), repoPath(t, widgets), fence-1, "")
	testenv.MustFail(t, err, events.ClassBusy, events.Contention)
	if left := w.left(widgets); len(left.Paths) > 0 || checkout.GitDirOf(w.path(widgets)).IsMarked() {
		t.Errorf("it changed something: %+v", left)
	}
	err = w.volume.Purge(t.Context(), repoPath(t, "acme/none"), w.fence.Add(1), "")
	testenv.MustFail(t, err, events.ClassNotFound, events.Permanent)
	if entries := testenv.Must(os.ReadDir(filepath.Join(w.volume.reposDir(), "acme")))(t); len(entries) != 1 {
		t.Errorf("it made %v", entries)
	}
}
