package volume

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/tree"
)

// mustForget ends the grace period of a moved repository, and checks that only the fence remains.
func (w *world) mustForget(repo string) {
	w.t.Helper()
	v := w.volume
	defer func() { w.volume = v }()
	w.volume = w.open(v.Root(), Config{Grace: 1})
	for range 3 { // the names, then the trees, then the rest
		if w.volume.IsTidy(repoPath(w.t, repo)) {
			w.t.Errorf("%s is taken for tidy", repo)
		}
		w.gcAt(repo)
	}
	owner, name, _ := strings.Cut(repo, "/")
	for _, entry := range testenv.Must(disk.ReadDir(w.path(owner)))(w.t) {
		if entry.Name() == name || strings.HasPrefix(entry.Name(), name+"@") {
			w.t.Errorf("%s is still published", entry.Name())
		}
	}
	var left []string
	for _, entry := range testenv.Must(os.ReadDir(v.folder(repoPath(w.t, repo)).dir))(w.t) {
		left = append(left, entry.Name())
	}
	if !slices.Equal(left, []string{"fence", "lock", "trash"}) {
		w.t.Errorf("still in the folder: %v", left)
	}
	if slices.Contains(w.repos(), repo) {
		w.t.Errorf("%s is still listed", repo)
	}
}

func TestNewRepositoryAtOldName(t *testing.T) {
	t.Parallel()
	for name, fork := range map[string]bool{"of its own": false, "a fork, of the very same commit": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			commit := w.create(map[string]string{"a": "1"})
			v1 := w.commit("v1", gitserver.Edit{Write: map[string]string{"v": "1"}})
			w.sync("")
			w.sync("v1")
			w.rename(widgets, gadgets)
			req := w.move()
			testenv.Must(0, w.volume.Move(t.Context(), req))(t)
			testenv.Must(w.git.Commit(t.Context(), gadgets, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
			w.syncAt(gadgets, "")
			other := commit
			if fork {
				testenv.Must(0, os.CopyFS(w.git.Dir(widgets), os.DirFS(w.git.Dir(gadgets))))(t)
				testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/main", commit))(t)
			} else {
				other = testenv.Must(w.git.Create(t.Context(), widgets, map[string]string{"b": "1"}))(t)
			}

			res := w.sync("")

			if !res.Published || res.After != other {
				t.Errorf("got %+v", res)
			}
			w.mustBeSound(widgets, other)
			w.mustBeSound(widgets+"@v1", v1) // of the moved repository, within its grace period
			published, ok, err := w.volume.Published(repoPath(t, widgets))
			if err != nil || !ok || published.Remote != w.git.URL(widgets) || len(published.Commits) != 1 || published.Commits[testenv.Must(events.ParseRef("main"))(t)] != other {
				t.Errorf("published: %+v, %v, %v", published, ok, err)
			}
			req.Fence, req.ToFence = w.fence.Add(1), w.fence.Add(1)
			testenv.Must(0, w.volume.Move(t.Context(), req))(t) // a duplicate of the request
			w.mustBeSound(widgets, other)
			w.mustVerifyAt(widgets)

			v := w.volume
			w.volume = w.open(v.Root(), Config{Grace: 1})
			for range 3 {
				w.gcAt(widgets)
			}
			w.mustBeSound(widgets, other)
			if isThere(t, w.path(widgets+"@v1")) {
				t.Error("the other names of the one that has left are still there")
			}
			f := v.folder(repoPath(t, widgets))
			if generations := testenv.Must(f.generations())(t); len(generations) != 1 || len(testenv.Must(disk.ReadDir(f.trees()))(t)) != 1 {
				t.Errorf("stores %v, trees %v", generations, testenv.Must(disk.ReadDir(f.trees()))(t))
			}
			next := w.push(map[string]string{"c": "1"})
			w.sync("")
			w.mustBeSound(widgets, next)
			w.mustVerifyAt(widgets)
			w.mustVerifyAt(gadgets)
			b, _, err := f.readBinding()
			if testenv.Must(b, err)(t).MovedAway != nil {
				t.Error("the tombstone is still there")
			}
			if !fork {
				return
			}
			// The tombstone is gone, and the request is repeated: the fork has not moved.
			testenv.Must(0, w.git.SetRef(t.Context(), widgets, "refs/heads/main", commit))(t)
			w.sync("")
			testenv.Must(0, w.git.SetRef(t.Context(), gadgets, "refs/heads/old", commit))(t)
			req.Fence, req.ToFence = w.fence.Add(1), w.fence.Add(1)
			err = w.volume.Move(t.Context(), req)
			testenv.MustFail(t, err, events.ClassConflict, events.Permanent)
			w.mustBeSound(widgets, commit)
			if _, here, err := w.volume.Published(repoPath(t, widgets)); !here || err != nil {
				t.Errorf("the fork was moved: %v", err)
			}
		})
	}
}

// A new remote at the old path does not keep the old names if nothing was fetched from it.
func TestOldNamesExpireAfterFailedSync(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	_, err := w.trySync("")
	testenv.MustFail(t, err, events.ClassNotFound, events.Permanent)
	other := testenv.Must(w.git.Create(t.Context(), "other/repo", map[string]string{"b": "1"}))(t)
	req := w.request("")
	req.URL = w.git.URL("other/repo")
	testenv.Must(w.volume.Sync(t.Context(), req))(t)
	w.mustBeSound(widgets, other)
	w.mustVerifyAt(widgets)
}

// Trees that readers have pinned outlive their grace period.
func TestPinnedTreeOfMovedRepositoryStays(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	res := w.sync("")
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	reader := testenv.Must(tree.OpenResult(w.volume.Root(), w.at(res)))(t)
	v := w.volume
	w.volume = w.open(v.Root(), Config{Grace: 1})
	for range 4 {
		w.gcAt(widgets)
	}
	if isThere(t, w.path(widgets)) {
		t.Error("the old name outlived its grace")
	}
	w.mustBeSound(res.Tree, res.After)
	closeTree(t, reader)
	w.gcAt(widgets)
	if isThere(t, w.path(res.Tree)) {
		t.Error("the tree outlived its pin")
	}
	w.volume = v
}

func TestMoveWithPreparedTree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume = w.open(w.volume.Root(), Config{Grace: 1})
	w.create(map[string]string{"a": "1", "same": "same"})
	for _, n := range []string{"2", "3", "4"} {
		w.push(map[string]string{"a": n})
		w.sync("")
		w.prepare()
	}
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	for _, repo := range []string{widgets, gadgets} {
		if w.isPrepared(repo) {
			t.Errorf("%s has a prepared tree after the move", repo)
		}
	}
	for range 3 {
		w.gcAt(widgets)
	}
	if entries := testenv.Must(os.ReadDir(w.volume.folder(repoPath(t, widgets)).dir))(t); len(entries) != 3 {
		t.Errorf("spare trees of what has left are kept: %v", entries)
	}
	var last string
	for _, n := range []string{"5", "6", "7", "8"} {
		last = testenv.Must(w.git.Commit(t.Context(), gadgets, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": n}}))(t)
		w.syncAt(gadgets, "")
	}
	w.mustBeSound(gadgets, last)
	w.mustVerifyAt(gadgets)
}

func TestMoveOfAnAdoptedClone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.clone(w.git.URL(widgets))
	w.sync("")
	clone := w.volume.folder(repoPath(t, widgets)).adopted()
	want := snapshot(t, clone)
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	w.mustBeSound(gadgets, commit)
	v := w.volume
	w.volume = w.open(v.Root(), Config{Grace: 1})
	for range 3 {
		w.gcAt(widgets)
	}
	mustKeep(t, clone, want)
	if d, ok, err := w.volume.Describe(repoPath(t, widgets)); err != nil || !ok || len(d.Adopted) != 1 {
		t.Errorf("the clone is not told of any more: %+v, %v, %v", d, ok, err)
	}
}

func TestMovedRepositoryIsCountedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": noise(t, 1<<20), "b": noise(t, 1<<20)})
	w.sync("")
	w.gc(true)
	before := w.volume.Usage(repoPath(t, widgets)).Bytes
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	w.gcAt(widgets)
	w.gcAt(gadgets)
	from, to := w.volume.Usage(repoPath(t, widgets)), w.volume.Usage(repoPath(t, gadgets))
	if from.Bytes > before/4 || to.Bytes < before/2 || from.Bytes+to.Bytes > before+before/4 {
		t.Errorf("%d bytes before; now %d at the old name, %d at the new", before, from.Bytes, to.Bytes)
	}
	if to.Trees != 1 || to.Measured.IsZero() {
		t.Errorf("got %+v", to)
	}
}

func TestOldNameKeepsGrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	w.sync("")
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	f := w.volume.folder(repoPath(t, widgets))
	w.age(f, 4*time.Minute)
	w.gcAt(widgets)
	w.mustBeSound(widgets, commit)
	tree := w.volume.linkedTree(f, w.path(widgets))
	w.age(f, 6*time.Minute)
	w.gcAt(widgets)
	if isThere(t, w.path(widgets)) || !isThere(t, f.tree(tree)) {
		t.Error("the name is to go, and who has just resolved it is to keep the tree")
	}
}

// age sets the age of a tombstone.
func (w *world) age(f folder, age time.Duration) {
	w.t.Helper()
	b, _, err := f.readBinding()
	testenv.Must(0, err)(w.t)
	b.MovedAway.At = time.Now().Add(-age)
	testenv.Must(0, f.writeBinding(b))(w.t)
}

// An interrupted cleanup continues, and deletes nothing else.
func TestInterruptedTidyAfterMove(t *testing.T) {
	t.Parallel()
	for _, gone := range []func(f folder) []string{
		func(f folder) []string { return []string{f.trees()} },
		func(f folder) []string { return []string{f.trees(), f.retired(), f.quarantines(), f.stores()} },
		func(f folder) []string {
			return []string{f.trees(), f.retired(), f.quarantines(), f.stores(), f.usage()}
		},
	} {
		w := newWorld(t)
		commit := w.create(map[string]string{"a": "1"})
		w.sync("")
		w.rename(widgets, gadgets)
		testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
		testenv.Must(0, os.Remove(w.path(widgets)))(t) // the name is always removed first
		f := w.volume.folder(repoPath(t, widgets))
		for _, path := range gone(f) {
			testenv.Must(0, os.RemoveAll(path))(t)
		}
		w.mustForget(widgets)
		w.mustBeSound(gadgets, commit)
	}
}

func TestNewRepositoryAtOldNameInOtherCase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	v1 := w.commit("v1", gitserver.Edit{Write: map[string]string{"v": "1"}})
	w.sync("")
	w.sync("v1")
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	other := testenv.Must(w.git.Create(t.Context(), "acme/Widgets", map[string]string{"b": "1"}))(t)
	if res := w.syncAt("acme/Widgets", ""); res.Path != widgets {
		t.Errorf("published as %s, beside the old name", res.Path)
	}
	w.mustBeSound(widgets, other)
	w.mustBeSound(widgets+"@v1", v1)
	w.rename("acme/Widgets", "corp/Widgets")
	testenv.Must(0, w.volume.Move(t.Context(), w.moveBetween("acme/Widgets", "corp/Widgets")))(t)
	w.mustBeSound(widgets+"@v1", v1)
	w.mustForget(widgets)
	w.mustBeSound("corp/Widgets", other)
	w.mustBeSound(gadgets+"@v1", v1)
}

// Removing a new repository at the old name removes its trees; those of the moved one keep their grace period.
func TestRemoveNewRepositoryAtOldName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	v1 := w.commit("v1", gitserver.Edit{Write: map[string]string{"v": "1"}})
	w.sync("")
	old := w.sync("v1")
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	testenv.Must(w.git.Create(t.Context(), widgets, map[string]string{"b": "1"}))(t)
	w.commit("dev", gitserver.Edit{Write: map[string]string{"d": "1"}})
	w.sync("")
	w.sync("dev")

	v1Gone := w.refRemoval("v1") // the new repository never had this ref
	if testenv.Must(w.volume.RemoveRef(t.Context(), v1Gone))(t) {
		t.Error("a name of the old one was removed as the new one's")
	}
	w.mustBeSound(old.Path, v1)
	testenv.Must(0, w.git.Delete(widgets))(t)
	f := w.volume.folder(repoPath(t, widgets))
	unpublished := []string{f.next("7-0123456789ab"), f.build(7)}
	for _, tree := range unpublished {
		testenv.Must(0, os.MkdirAll(tree, 0o755))(t)
	}
	if !testenv.Must(w.volume.Remove(t.Context(), w.removal()))(t) {
		t.Error("nothing was removed")
	}
	for _, tree := range unpublished {
		if isThere(t, tree) {
			t.Errorf("%s is still there", tree)
		}
	}

	w.mustBeSound(old.Path, v1)
	w.mustVerifyAt(widgets)
	for _, name := range []string{widgets, widgets + "@dev"} {
		if isThere(t, w.path(name)) {
			t.Errorf("%s is still there", name)
		}
	}
	if stores, trees := testenv.Must(f.generations())(t), testenv.Must(disk.ReadDir(f.trees()))(t); len(stores) != 1 || len(trees) != 2 {
		t.Errorf("stores %v, trees %v", stores, trees)
	}
	if testenv.Must(w.volume.Remove(t.Context(), w.removal()))(t) {
		t.Error("removed twice")
	}
	w.mustForget(widgets)
	w.mustBeSound(gadgets+"@v1", v1)
}

func TestPathBelowOldNameIsFreeAfterGrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	commit := testenv.Must(w.git.Create(t.Context(), widgets+"/docs", map[string]string{"d": "1"}))(t)
	_, err := w.volume.Sync(t.Context(), w.requestAt(widgets+"/docs", ""))
	testenv.MustFail(t, err, events.ClassConflict, events.Retryable)
	w.mustForget(widgets)
	w.syncAt(widgets+"/docs", "")
	w.mustBeSound(widgets+"/docs", commit)
}

// A tree of a repository that has moved away is pinned after its grace. A sync of the new one looks at all trees no more often.
func TestPinnedTreeOfMovedRepositoryDoesNotMakeTidyDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.volume.cfg.Grace = time.Hour
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.rename(widgets, gadgets)
	testenv.Must(0, w.volume.Move(t.Context(), w.move()))(t)
	testenv.Must(w.git.Create(t.Context(), widgets, map[string]string{"b": "1"}))(t)
	w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	b, _, err := f.readBinding()
	testenv.Must(0, err)(t)
	b.MovedAway.At = b.MovedAway.At.Add(-2 * time.Hour)
	s := &holder{v: w.volume, f: f, binding: b}
	if due := testenv.Must(s.isTidyDue())(t); due {
		t.Error("all trees are looked at, though they were just now")
	}
}
