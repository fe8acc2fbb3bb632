package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

func looseCount(t *testing.T, s store) (n int) {
	t.Helper()
	for _, group := range testenv.Must(disk.ReadDir(filepath.Join(s.dir, "objects")))(t) {
		if len(group.Name()) == 2 {
			n += len(testenv.Must(disk.ReadDir(filepath.Join(s.dir, "objects", group.Name())))(t))
		}
	}
	return n
}

func (w *world) prune(f folder, fence uint64) error {
	return (&holder{v: w.volume, f: f, fence: fence}).prune(w.t.Context())
}

func TestPruneKeepsWhatTreesNeed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "0", "dir/b": "same", "dir/c": "0"})
	for i := range 10 {
		w.push(map[string]string{"a": fmt.Sprint(i), "dir/c": fmt.Sprint("c", i)})
		w.sync("")
	}
	f := w.volume.folder(repoPath(t, widgets))
	s := testenv.Must(f.currentStore(nil))(t)
	grown := looseCount(t, s)

	testenv.Must(0, w.prune(f, w.fence.Load()))(t)
	if n := looseCount(t, s); n != grown {
		t.Errorf("%d of %d objects are left while all trees are there", n, grown)
	}
	w.volume = w.open(w.volume.Root(), Config{Grace: 1})
	commit := w.push(map[string]string{"a": "last"})
	w.sync("")
	testenv.Must(0, w.prune(f, w.fence.Load()))(t)
	if n := looseCount(t, s); n > 12 {
		t.Errorf("%d objects are left; two trees need no more than 12", n)
	}
	w.mustBeSound(widgets, commit)
	if out := testenv.Must(gitserver.Git(t.Context(), s.dir, "", "fsck", "--full"))(t); strings.Contains(out, "missing") {
		t.Errorf("git fsck in the store: %s", out)
	}
	next := w.push(map[string]string{"a": "0"}) // needs a blob that was pruned
	w.sync("")
	w.mustBeSound(widgets, next)
}

func TestStaleHolderPrunesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "0"})
	w.sync("")
	w.push(map[string]string{"a": "1"})
	w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	s := testenv.Must(f.currentStore(nil))(t)
	stray := filepath.Join(s.dir, "objects", "17", strings.Repeat("0", 38))
	testenv.Must(0, os.MkdirAll(filepath.Dir(stray), 0o755))(t)
	testenv.Must(0, os.WriteFile(stray, nil, 0o644))(t)
	if err := w.prune(f, 1); err == nil {
		t.Error("a stale holder was let prune")
	}
	if _, err := os.Lstat(stray); err != nil {
		t.Errorf("it pruned: %v", err)
	}
}

func TestStoreRefetch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begun := w.create(map[string]string{"a": "0"})
	w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	first := testenv.Must(f.currentStore(nil))(t)
	before := w.push(map[string]string{"b": "0"})
	w.sync("")
	testenv.Must(0, first.requestRefetch())(t)
	commit := w.push(map[string]string{"a": "1", "c": "1"})
	req := w.request("")
	res := testenv.Must(w.volume.Sync(t.Context(), req))(t)
	if res.Full || res.Before != before {
		t.Errorf("unexpected result %+v", res)
	}
	w.mustMatchGitDiff(res)
	w.mustBeSound(widgets, commit)
	req = w.request("")
	req.Base = func(events.Ref, Publication) Base { return Base{Commit: begun} } // exists only in the first store
	if res = testenv.Must(w.volume.Sync(t.Context(), req))(t); res.Full {
		t.Errorf("unexpected result %+v", res)
	}
	w.mustMatchGitDiff(res)
	if now := testenv.Must(f.currentStore(nil))(t); now == first || looseCount(t, now) != 0 {
		t.Errorf("the store is still %s, with %d loose objects", now.dir, looseCount(t, now))
	}

	// A repository that can no longer be fetched completely keeps its store.
	second := testenv.Must(f.currentStore(nil))(t)
	testenv.Must(0, second.requestRefetch())(t)
	w.volume = w.open(w.volume.Root(), Config{MaxPackBytes: 700})
	w.push(map[string]string{"big": strings.Repeat("0123456789abcdef", 4)})
	w.sync("")
	if second.needsRefetch() && testenv.Must(f.currentStore(nil))(t) == second {
		t.Error("the store is still due")
	}
}

// TestPruneKeepsTheHistory has a shallow tree, built before a depth of more than one commit was requested.
// Pruning must keep the history that other trees need.
func TestPruneKeepsTheHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "0"})
	for i := range 4 {
		w.push(map[string]string{"a": fmt.Sprint("content ", i)})
	}
	w.syncDepth("", 0)
	w.syncDepth("", events.DepthFull)
	w.mustShow(widgets, 5)
	f := w.volume.folder(repoPath(t, widgets))

	testenv.Must(0, w.prune(f, w.fence.Load()))(t)

	w.mustShow(widgets, 5)
}

// TestLargePushes makes pushes whose packs are mostly superseded by the next one. Even without garbage collection, only
// a few packs may stay on disk.
func TestLargePushes(t *testing.T) {
	t.Parallel()
	testenv.SkipUnderRace(t)
	w := newWorld(t)
	w.volume = w.open(t.TempDir(), Config{Grace: 1})
	push := func() string {
		edit := map[string]string{}
		for i := range 120 {
			edit[fmt.Sprint("f", i)] = noise(t, 3000)
		}
		return w.push(edit)
	}
	w.create(nil)
	push()
	w.sync("")
	f := w.volume.folder(repoPath(t, widgets))
	fresh := diskUse(t, f.stores())
	for range testenv.Form(6, 25) {
		commit := push()
		w.sync("")
		if use := diskUse(t, f.stores()); use > 8*fresh {
			t.Fatalf("the stores take %d bytes, and %d at first", use, fresh)
		}
		w.mustBeSound(widgets, commit)
	}
}

// TestFailedRefetchIsNotRetriedEachSync has a repository that can no longer be fetched completely.
func TestFailedRefetchIsNotRetriedEachSync(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	for name, fill := range map[string]func(t *testing.T, s store){
		"packs": func(t *testing.T, s store) {
			for i := range maxPacks + 1 { // copies of one pack
				for _, ext := range []string{".pack", ".idx"} {
					testenv.Must(0, os.Link(one(t, s.dir, "objects/pack/pack-*"+ext), filepath.Join(s.dir, fmt.Sprintf("objects/pack/copy-%d%s", i, ext))))(t)
				}
			}
		},
		"loose objects": func(*testing.T, store) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"a": "0", "big": noise(t, 1_000_000)})
			w.sync("")
			w.volume = w.open(w.volume.Root(), Config{MaxPackBytes: 900_000, Grace: 1}) // so that each sync counts loose objects
			s := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t)
			fill(t, s)
			const syncs = 10
			for i := range syncs {
				edit := map[string]string{"a": fmt.Sprint("next ", i)}
				for n := range 90 {
					edit[fmt.Sprint("f", i, "-", n)] = noise(t, 4000)
				}
				w.push(edit)
				w.sync("")
			}
			switch n := w.git.Stats(widgets).UploadPacks; {
			case n < syncs+2:
				t.Errorf("%d fetches for %d syncs: none was to be of everything", n, syncs+1)
			case n > syncs+5:
				t.Errorf("%d fetches for %d syncs", n, syncs+1)
			}
		})
	}
}
