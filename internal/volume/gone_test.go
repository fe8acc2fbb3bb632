package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/testenv"
)

// goneWorld has acme/widgets published, removed and forgotten by a newer holder when a sync reaches a step.
func goneWorld(t *testing.T, step string) (w *world, err error) {
	t.Helper()
	w = newWorld(t)
	w.create(map[string]string{"a": "1"})
	newer := w.volume
	w.volume = w.open(newer.Root(), Config{Step: func(name string) {
		if name != step {
			return
		}
		req := RemoveRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1), Force: true}
		testenv.Must(newer.Remove(t.Context(), req))(t)
		if forgotten := testenv.Must(newer.Forget(t.Context(), req.Repo, w.fence.Add(1)))(t); !forgotten {
			t.Error("not forgotten")
		}
	}})
	_, err = w.trySync("")
	w.volume = newer
	return w, err
}

// TestStaleHolderOfAForgottenRepositoryPublishesNothing has the fence deleted under a sync whose lease is confirmed
// nevertheless, the worst that can happen.
func TestStaleHolderOfAForgottenRepositoryPublishesNothing(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"fenced", "bound", "listed", "fetched", "moved", "indexed", "built", "confirmed"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w, err := goneWorld(t, step)
			if !errors.Is(err, ErrStale) {
				t.Errorf("%v, want it stale", err)
			}
			if entries := testenv.Must(os.ReadDir(w.volume.Root()))(t); len(entries) != 1 {
				t.Errorf("%v published", entries)
			}
			// what it has left is forgotten too
			testenv.Must(w.volume.Forget(t.Context(), repoPath(t, widgets), w.fence.Add(1)))(t)
			if left, _ := filepath.Glob(w.path(adminDir, "repos", "*")); len(left) > 0 {
				t.Errorf("%q left", left)
			}
			w.sync("")
			w.mustRead(widgets, map[string]string{"a": "1"})
		})
	}
}

func TestForgetKeepsWhatIsNotGone(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(w *world, f folder){
		"published": func(w *world, _ folder) { w.sync("") },
		"adopted":   func(_ *world, f folder) { _ = os.MkdirAll(filepath.Join(f.adopted(), "7"), 0o755) },
		"subtree":   func(_ *world, f folder) { _ = os.MkdirAll(f.tree("7-"+strings.Repeat("a", 40)), 0o755) },
		"moved away": func(_ *world, f folder) {
			_ = f.writeBinding(binding{Repo: repoPath(t, widgets), MovedAway: &tombstone{To: repoPath(t, "acme/gadgets")}})
		},
		"newer fence": func(w *world, f folder) { _ = f.record(context.Background(), 1<<40) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.create(map[string]string{"a": "1"})
			f := w.volume.folder(repoPath(t, widgets))
			testenv.Must(0, f.record(t.Context(), w.fence.Add(1)))(t)
			prepare(w, f)
			forgotten, err := w.volume.Forget(t.Context(), repoPath(t, widgets), w.fence.Add(1))
			if forgotten || err != nil && !errors.Is(err, ErrStale) {
				t.Errorf("%v, %v", forgotten, err)
			}
			if floor, err := f.floor(); floor == 0 || err != nil {
				t.Errorf("fence %d, %v", floor, err)
			}
		})
	}
}

// TestForgettingSparesWhoWaitsForTheFile has a newer holder wait for the file lock while the folder is deleted.
func TestForgettingSparesWhoWaitsForTheFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.volume.folder(repoPath(t, widgets))
	testenv.Must(0, f.record(t.Context(), w.fence.Add(1)))(t)
	unlock := testenv.Must(lockFile(t.Context(), f.lock()))(t)
	waiting := make(chan error)
	go func() { waiting <- f.record(context.WithoutCancel(t.Context()), 5) }()
	testenv.Must(0, os.Rename(f.dir, filepath.Join(w.volume.Root(), adminDir, tryPrefix+"gone")))(t)
	unlock()
	if err := <-waiting; err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	} else if err == nil {
		if floor, err := f.floor(); floor != 5 || err != nil {
			t.Errorf("fence %d, %v; want 5 in the new folder", floor, err)
		}
	}
}

// TestRemovalDeletesEmptyFoldersBelowTheRoot has a root that is a symbolic link, and a folder that is not empty.
func TestRemovalDeletesEmptyFoldersBelowTheRoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	root := filepath.Join(t.TempDir(), "link")
	testenv.Must(0, os.Symlink(w.volume.Root(), root))(t)
	w.volume = w.open(root, Config{})
	for _, foreign := range []bool{false, true} {
		w.sync("")
		if foreign {
			testenv.Must(0, os.WriteFile(w.path("acme", "notes"), nil, 0o644))(t)
		}
		req := RemoveRequest{Repo: repoPath(t, widgets), Fence: w.fence.Add(1), Force: true}
		testenv.Must(w.volume.Remove(t.Context(), req))(t)
		if _, err := os.Lstat(w.path("acme")); foreign != (err == nil) {
			t.Errorf("with a foreign file: %v; the owner's folder: %v", foreign, err)
		}
	}
	if info, err := os.Lstat(root); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the root: %v, %v", info, err)
	}
}
