package volume

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/tree"
)

func (w *world) tryPurge(repo, commit string) (PurgeResult, error) {
	w.t.Helper()
	return w.volume.Purge(w.t.Context(), PurgeRequest{Repo: repoPath(w.t, repo), Commit: commit, Fence: w.fence.Add(1)})
}

// purge purges a commit from acme/widgets.
func (w *world) purge(commit string, want PurgeState) PurgeResult {
	w.t.Helper()
	result := testenv.Must(w.tryPurge(widgets, commit))(w.t)
	if result.State != want {
		w.t.Fatalf("the commit is %s, want %s: %+v", result.State, want, result)
	}
	return result
}

// bares returns the stores of a repository and of its submodules.
func (w *world) bares(repo string) []string {
	w.t.Helper()
	f := w.volume.folder(repoPath(w.t, repo))
	return append(testenv.Must(f.storeDirs())(w.t), testenv.Must(f.listParts())(w.t)...)
}

// holders returns the stores in which git finds an object.
func (w *world) holders(repo, id string) (holders []string) {
	w.t.Helper()
	for _, dir := range w.bares(repo) {
		if _, err := gitserver.Git(w.t.Context(), dir, "", "cat-file", "-e", id); err == nil {
			holders = append(holders, dir)
		}
	}
	return holders
}

// mustLack checks with git that the stores of a repository have none of these objects, and are whole.
func (w *world) mustLack(repo string, ids ...string) {
	w.t.Helper()
	for _, id := range ids {
		if holders := w.holders(repo, id); len(holders) > 0 {
			w.t.Errorf("%.12s is in %v", id, holders)
		}
	}
	for _, dir := range w.bares(repo) {
		w.mustBeWhole(dir)
	}
	if left := testenv.Must(w.volume.folder(repoPath(w.t, repo)).pendingPurges())(w.t); len(left) > 0 {
		w.t.Errorf("purges are left: %v", left)
	}
}

func (w *world) mustBeWhole(dir string) {
	w.t.Helper()
	if out, err := gitserver.Git(w.t.Context(), dir, "", "fsck", "--full", "--strict", "--no-dangling"); err != nil || out != "" {
		w.t.Errorf("git fsck in %s: %v\n%s", dir, err, out)
	}
}

// mustHaveRefsOf checks that the branches of the store are those of the forge.
func (w *world) mustHaveRefsOf(repo string, branches ...string) {
	w.t.Helper()
	refs := []string{"for-each-ref", "--format=%(objectname) %(refname)"}
	for _, branch := range branches {
		refs = append(refs, "refs/heads/"+branch)
	}
	want := testenv.Must(w.git.Git(w.t.Context(), repo, "", refs...))(w.t)
	dirs := testenv.Must(w.volume.folder(repoPath(w.t, repo)).storeDirs())(w.t)
	if got := testenv.Must(gitserver.Git(w.t.Context(), dirs[0], "", "for-each-ref", "--format=%(objectname) %(refname)"))(w.t); got != want {
		w.t.Errorf("the refs are\n%s\nwant\n%s", got, want)
	}
}

// blob returns the ID of a file of a commit at the forge.
func (w *world) blob(commit, path string) string {
	w.t.Helper()
	return testenv.Must(w.git.Git(w.t.Context(), widgets, "", "rev-parse", commit+":"+path))(w.t)
}

// leak has a clean commit, a commit with a secret and another after it, of which the last is published, and replaces these at the
// forge. The first two are in a pack of the store.
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
				big := noise(t, 1<<10)
				clean := w.push(map[string]string{"a": "1", "big": strings.Repeat(big, 40), "dir/b": "same"})
				leaked := w.push(map[string]string{"dir/key": "secret", "big": strings.Repeat(big, 40) + "+"})
				w.syncDepth("", depth)
				secret := w.blob(leaked, "dir/key")
				after := w.push(map[string]string{"a": "2"})
				last := w.syncDepth("", depth)
				w.prepare()
				before := w.purge(leaked, PurgePublished)
				if len(before.Published) != 1 || before.Published[0].Name != widgets || before.Published[0].Ref != "refs/heads/main" || before.Published[0].Commit != after {
					t.Errorf("published: %+v", before.Published)
				}
				w.mustBeSound(widgets, after)

				head := w.commit(gitserver.Main, gitserver.Edit{Parent: clean, Write: map[string]string{"a": "3", "big": strings.Repeat(big, 40) + "-"}})
				w.syncDepth("", depth)
				if len(w.holders(widgets, leaked)) == 0 || len(w.holders(widgets, secret)) == 0 {
					t.Fatal("it is gone before it is purged")
				}
				result := w.purge(leaked, PurgePurged)
				if len(result.Trees) != 2 || !slices.Contains(result.Trees, last.Tree) || result.Objects < 6 || result.SharedCount != 0 && depth != 1 {
					t.Errorf("purged: %+v", result)
				}
				w.mustLack(widgets, leaked, after, secret)
				w.mustHaveRefsOf(widgets, "main")
				w.mustBeSound(widgets, head)
				mustVerify(t, w)
				mustBeTidy(t, w)
				if again := w.purge(leaked, PurgeAbsent); again.Objects != 0 {
					t.Errorf("again: %+v", again)
				}
				next := w.push(map[string]string{"a": "4"})
				req := w.request("")
				req.Base = func(events.Ref, string) string { return leaked } // given to an app before
				res := testenv.Must(w.volume.Sync(t.Context(), req))(t)
				if res.After != next || !res.Full || res.Asked != true {
					t.Errorf("the next sync: %+v", res)
				}
				w.mustLack(widgets, leaked, after, secret)
			})
		}
	}
}

func TestPurgeDryRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, leaked, _ := w.leak(events.DepthFull)
	w.sync("")
	before := snapshot(t, w.path(adminDir))
	req := PurgeRequest{Repo: repoPath(t, widgets), Commit: leaked, Fence: w.fence.Add(1), DryRun: true}
	foreseen := testenv.Must(w.volume.Purge(t.Context(), req))(t)
	mustKeep(t, w.path(adminDir), before)
	result := w.purge(leaked, PurgePurged)
	if foreseen.State != PurgePresent || foreseen.Objects != result.Objects || !slices.Equal(foreseen.Trees, result.Trees) {
		t.Errorf("foreseen %+v, was %+v", foreseen, result)
	}
}

// A commit that introduced a file whose content is also in a published tree.
func TestPurgeReportsContentThatStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, leaked, _ := w.leak(events.DepthFull)
	w.push(map[string]string{"docs/example": "secret"})
	w.sync("")
	result := w.purge(leaked, PurgePurged)
	want := SharedFile{Path: "dir/key", Blob: w.blob(leaked, "dir/key"), In: widgets + ": docs/example"}
	if !result.Known || result.SharedCount != 1 || result.Shared[0] != want {
		t.Errorf("shared: %+v", result)
	}
	if len(w.holders(widgets, want.Blob)) != 1 {
		t.Error("the content is gone")
	}
	w.mustLack(widgets, leaked)
	mustVerify(t, w)
}

func TestPurgeWaitsForPins(t *testing.T) {
	t.Parallel()
	for name, pin := range map[string]func(w *world) (unpin func()){
		"a reader": func(w *world) func() {
			reader := testenv.Must(tree.Open(w.volume.Root(), widgets))(w.t)
			return func() { closeTree(w.t, reader) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			_, leaked, after := w.leak(events.DepthFull)
			head := w.git.Head(widgets, "refs/heads/main")
			unpin := pin(w)
			w.sync("")
			result := w.purge(leaked, PurgePinned)
			of := result.Pins[0]
			if of.Kind != PinProcess || of.PID != os.Getpid() || of.Name == "" || of.Since.IsZero() || len(result.Pins) != 1 {
				t.Errorf("pins: %+v", result.Pins)
			}
			if len(result.Trees) != 1 || len(w.holders(widgets, after)) == 0 || len(result.Shared) > 0 {
				t.Errorf("with a pin: %+v", result)
			}
			if w.volume.IsTidy(repoPath(t, widgets)) {
				t.Error("no patrol would complete it")
			}
			w.gc(false)
			if len(w.holders(widgets, after)) == 0 {
				t.Error("a patrol purged what is pinned")
			}
			unpin()
			w.gc(false)
			w.mustLack(widgets, leaked, after)
			w.mustBeSound(widgets, head)
			w.purge(leaked, PurgeAbsent)
			mustVerify(t, w)
		})
	}
}

// A workspace of another commit may use any object of the store.
func TestPurgeKeepsPinnedObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, leaked, after := w.leak(1)
	w.syncDepth("", 1)
	reader := testenv.Must(tree.Open(w.volume.Root(), widgets))(t)
	pin := testenv.Must(PinObjects(t.Context(), reader.Dir()))(t)
	closeTree(t, reader)
	w.purge(leaked, PurgePinned)
	if len(w.holders(widgets, after)) == 0 {
		t.Error("the objects are gone")
	}
	_ = unix.Flock(int(pin.Fd()), unix.LOCK_UN) // a child of another test may share the open file
	pin.Close()
	w.gc(false)
	w.mustLack(widgets, leaked, after)
}

// Several refs, of which some are no longer published, or only in the store.
func TestPurgeOfSeveralRefs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	clean, leaked, _ := w.leak(events.DepthFull)
	w.sync("")
	w.commit("side", gitserver.Edit{Parent: leaked, Write: map[string]string{"side": "1"}})
	w.commit("old", gitserver.Edit{Parent: leaked, Write: map[string]string{"old": "1"}})
	w.commit("fine", gitserver.Edit{Parent: clean, Write: map[string]string{"fine": "1"}})
	for _, ref := range []string{"side", "old", "fine"} {
		w.sync(ref)
	}
	if result := w.purge(leaked, PurgePublished); len(result.Published) != 2 || result.Published[0].Name != widgets+"@old" || result.Published[1].Name != widgets+"@side" {
		t.Errorf("published: %+v", result.Published)
	}
	w.commit("side", gitserver.Edit{Parent: clean, Write: map[string]string{"side": "2"}})
	w.sync("side")
	testenv.Must(0, w.git.DeleteRef(t.Context(), widgets, "refs/heads/old"))(t)
	testenv.Must(0, os.Remove(w.path(widgets+"@old")))(t) // the store still has the ref
	w.purge(leaked, PurgePurged)
	w.mustLack(widgets, leaked)
	w.mustHaveRefsOf(widgets, "main", "side", "fine")
	mustVerify(t, w)
}

// A replaced tree whose history is cut may descend from the commit.
func TestPurgeWhereHistoryIsCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	clean := w.create(map[string]string{"a": "1"})
	leaked := w.push(map[string]string{"key": "secret"})
	w.push(map[string]string{"a": "2"})
	tip := w.push(map[string]string{"a": "3"})
	w.syncDepth("", 1)
	secret := w.blob(tip, "key")
	w.commit(gitserver.Main, gitserver.Edit{Parent: clean, Write: map[string]string{"a": "4"}})
	w.syncDepth("", 1)
	if result := w.purge(leaked, PurgeAbsent); !slices.Equal(result.Unknown, []string{tip}) {
		t.Errorf("unknown: %v, want %s", result.Unknown, tip)
	}
	req := PurgeRequest{Repo: repoPath(t, widgets), Commit: leaked, Fence: w.fence.Add(1), Replaced: true}
	if result := testenv.Must(w.volume.Purge(t.Context(), req))(t); result.State != PurgePurged || len(result.Trees) != 1 {
		t.Errorf("got %+v", result)
	}
	w.mustLack(widgets, tip, secret)
	mustVerify(t, w)
}

func TestPurgeOfSubmodule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lib := w.simple()
	w.syncParts(events.SubmodulesRequired)
	result := w.purge(lib, PurgePublished)
	if len(result.Published) != 1 || result.Published[0].Part != "sub" {
		t.Errorf("published: %+v", result.Published)
	}
	fixed := w.commitAt("acme/lib", gitserver.Edit{Write: map[string]string{"l": "without", "dir/m": "more"}, Orphan: true})
	w.withParts(widgets, map[string]string{"sub": fixed}, map[string]string{"sub": "../lib.git"}, nil)
	w.syncParts(events.SubmodulesRequired)
	if len(w.holders(widgets, lib)) == 0 {
		t.Fatal("it is gone before it is purged")
	}
	w.purge(lib, PurgePurged)
	w.mustLack(widgets, lib)
	w.mustVerify()

	next := w.commitAt("acme/lib", gitserver.Edit{Write: map[string]string{"l": "secret"}})
	w.withParts(widgets, map[string]string{"sub": next}, map[string]string{"sub": "../lib.git"}, nil)
	w.syncParts(events.SubmodulesRequired)
	w.commitAt("acme/lib", gitserver.Edit{Write: map[string]string{"l": "more"}, Parent: fixed})
	last := w.commitAt("acme/lib", gitserver.Edit{Write: map[string]string{"x": "more"}})
	w.withParts(widgets, map[string]string{"sub": last}, map[string]string{"sub": "../lib.git"}, nil)
	w.syncParts(events.SubmodulesRequired) // fetched upon the store of the commit before
	if len(w.holders(widgets, next)) < 2 {
		t.Errorf("it is in %v", w.holders(widgets, next))
	}
	w.purge(next, PurgePurged)
	w.mustLack(widgets, next)
	w.mustVerify()
}

func TestPurgeOfMovedRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, leaked, after := w.leak(events.DepthFull)
	old := testenv.Must(tree.Open(w.volume.Root(), widgets))(t)
	defer old.Close()
	w.sync("")
	w.purge(leaked, PurgePinned)
	w.rename(widgets, gadgets)
	testenv.Must(w.volume.Move(t.Context(), w.move()))(t)
	if !slices.Equal(testenv.Must(w.volume.folder(repoPath(t, gadgets)).pendingPurges())(t), []string{leaked}) {
		t.Error("the purge was left behind")
	}
	w.gcAt(gadgets)
	w.mustLack(gadgets, leaked, after)
	w.mustVerifyAt(gadgets)
	closeTree(t, old)
	w.gcAt(widgets)
	w.mustLack(widgets, leaked, after)
}

// The names of a repository that has moved away are kept for their grace, at the commit that they had.
func TestPurgeOfNamesThatHaveMovedAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, leaked, after := w.leak(events.DepthFull)
	testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/main", after))(t)
	w.rename(widgets, gadgets)
	testenv.Must(w.volume.Move(t.Context(), w.move()))(t)
	w.purge(leaked, PurgePurged)
	if isThere(t, w.path(widgets)) {
		t.Error("the name is still published")
	}
	w.mustLack(widgets, leaked, after)
	if result := testenv.Must(w.tryPurge(gadgets, leaked))(t); result.State != PurgePublished {
		t.Errorf("at the new path: %+v", result)
	}
	w.mustBeSound(gadgets, after)
}

// A ref whose commit is missing, for example after a disk failed, would make the next fetch incomplete.
func TestPurgeDropsRefsOfMissingCommits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, leaked, after := w.leak(events.DepthFull)
	head := w.sync("").After
	s := store{w.bares(widgets)[0]}
	refs := testenv.Must(s.refs())(t)
	refs["refs/heads/gone"] = object.ParseID(strings.Repeat("12", len(leaked)/2))
	testenv.Must(0, s.writeRefs(refs))(t)
	w.purge(leaked, PurgePurged)
	w.mustLack(widgets, leaked, after)
	w.mustBeSound(widgets, head)
}

// TestPurgeKilledBetweenStores kills a purge of two stores, of which only the first shows that the ref of the second descends from the
// commit.
func TestPurgeKilledBetweenStores(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, leaked, after := w.leak(events.DepthFull)
	side := w.commit("side", gitserver.Edit{Parent: after, Write: map[string]string{"a": "4"}})
	head := w.sync("").After
	second := w.volume.folder(repoPath(t, widgets)).generation(2).dir
	testenv.Must(gitserver.Git(t.Context(), "/", "", "clone", "-q", "--bare", "--depth=1", "--branch=side", "file://"+w.git.Dir(widgets), second))(t)
	cmd := w.dying("purge pack removed", "")
	cmd.Env = append(cmd.Env, "LOCKSTEP_TEST_DIE_PURGE="+leaked)
	w.mustBeKilled(cmd, "purge pack removed")
	w.purge(leaked, PurgePurged)
	w.mustLack(widgets, leaked, after, side)
	w.mustBeSound(widgets, head)
}

func TestPurgeReportsAdoptedClones(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, leaked, after := w.leak(events.DepthFull)
	testenv.Must(0, os.RemoveAll(w.path(widgets)))(t)
	testenv.Must(0, os.RemoveAll(w.path(adminDir, "repos")))(t)
	head := w.git.Head(widgets, "refs/heads/main")
	testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/main", after))(t)
	w.clone(w.git.URL(widgets))
	testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/main", head))(t)
	w.sync("")
	result := w.purge(leaked, PurgePinned)
	if len(result.Pins) != 1 || result.Pins[0].Kind != PinAdopted {
		t.Errorf("pins: %+v", result.Pins)
	}
	testenv.Must(0, os.RemoveAll(w.path(result.Pins[0].Path)))(t)
	w.purge(leaked, PurgeAbsent)
	w.mustLack(widgets, leaked)
}

func TestPurgeOfLFSObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := w.git.LFS(widgets)
	clean := w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("fine")})
	leaked := w.push(map[string]string{"key.bin": server.Put("secret")})
	w.syncLFS(allLFS)
	w.commit(gitserver.Main, gitserver.Edit{Parent: clean, Write: map[string]string{"b": "1"}})
	w.syncLFS(allLFS)
	w.purge(leaked, PurgePurged)
	if _, oid := gitserver.LFSPointer("fine"); !slices.Equal(w.lfsObjects(), []string{oid}) {
		t.Errorf("LFS objects: %v, want %s", w.lfsObjects(), oid)
	}
	w.mustVerify()
}

func TestPurgeOfOtherObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	tree := testenv.Must(w.git.Git(t.Context(), widgets, "", "rev-parse", commit+"^{tree}"))(t)
	w.sync("")
	for _, id := range []string{w.blob(commit, "a"), tree} {
		_, err := w.tryPurge(widgets, id)
		testenv.MustFail(t, err, events.ClassConflict, events.Permanent)
	}
	mustVerify(t, w)
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
	res := w.sync("")
	if result := w.purge(leaked, PurgePublished); len(result.Published) != 1 || result.Published[0].Name != ViewPath(widgets, "argo", "guide") {
		t.Errorf("published: %+v", result.Published)
	}
	w.publishViews(res, views)
	result := w.purge(leaked, PurgePurged)
	if !slices.Contains(result.Trees, old) || isThere(t, w.path(old)) {
		t.Errorf("the view's tree is still there: %v", result.Trees)
	}
	w.mustLack(widgets, leaked)
	w.mustRead(w.viewTrees(widgets, "guide")["guide"], map[string]string{"dir/b": "same"})
}

// What has a store open reads on while its packs are replaced.
func TestPurgeWhileTheStoreIsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	clean, leaked, _ := w.leak(events.DepthFull)
	w.sync("")
	dir := w.bares(widgets)[0]
	reader := object.Open(dir)
	defer reader.Close()
	testenv.Must(reader.Has(object.ParseID(clean)))(t)
	fork := reader.Fork()
	defer fork.Close()
	w.purge(leaked, PurgePurged)
	for _, objects := range []*object.Store{reader, fork} {
		blob := object.ParseID(w.blob(clean, "big"))
		testenv.Must(0, objects.CopyBlob(io.Discard, blob))(t)
	}
	w.mustLack(widgets, leaked)
}

// TestPurgeKilledAtEveryStep kills a process at each step of a purge. Nothing published is lost, and the next purge, or a patrol,
// completes it.
func TestPurgeKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	steps := []string{
		"purge noted", "purge trees", "purge refs", "purge pack written", "purge pack placed", "purge pack removed", "purge loose",
		"purge stores", "purge trash",
	}
	for i, step := range testenv.Form(steps[3:6], steps) {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			_, leaked, after := w.leak(events.DepthFull)
			head := w.sync("").After
			cmd := w.dying(step, "")
			cmd.Env = append(cmd.Env, "LOCKSTEP_TEST_DIE_PURGE="+leaked)
			w.mustBeKilled(cmd, step)
			w.mustBeSound(widgets, head)
			for _, dir := range w.bares(widgets) {
				w.mustBeWhole(dir)
			}
			if w.volume.IsTidy(repoPath(t, widgets)) {
				t.Error("no patrol would complete it")
			}
			if i%2 == 0 {
				w.gc(false)
			} else if result := testenv.Must(w.tryPurge(widgets, leaked))(t); result.State != PurgePurged {
				t.Errorf("again: %+v", result)
			}
			w.mustLack(widgets, leaked, after)
			w.mustBeSound(widgets, head)
			mustVerify(t, w)
			mustBeTidy(t, w)
			next := w.push(map[string]string{"a": "5"})
			w.sync("")
			w.mustBeSound(widgets, next)
		})
	}
}

// A holder of an older lease must not bring the commit back.
func TestStalePurgeDoesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, leaked, _ := w.leak(events.DepthFull)
	w.sync("")
	fence := w.fence.Load()
	w.sync("")
	_, err := w.volume.Purge(t.Context(), PurgeRequest{Repo: repoPath(t, widgets), Commit: leaked, Fence: fence - 1})
	testenv.MustFail(t, err, events.ClassStale, events.Contention)
	if len(w.holders(widgets, leaked)) == 0 {
		t.Error("it deleted something")
	}
	if _, err := w.tryPurge("acme/none", leaked); err != nil {
		t.Error(err)
	}
	if entries := testenv.Must(disk.ReadDir(filepath.Join(w.volume.reposDir(), "acme")))(t); len(entries) != 1 {
		t.Errorf("it made %v", entries)
	}
	if g := checkout.GitDirOf(w.path(widgets)); g.IsMarked() {
		t.Error("the tree is marked")
	}
}
