package volume

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/testenv"
)

// syncs records what is synced below a folder.
type syncs struct {
	mu    sync.Mutex
	calls []string        // "fsync path", …
	paths map[string]bool // of fsync
}

func (s *syncs) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.paths = nil, map[string]bool{}
}

func (s *syncs) has(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paths[path]
}

// observeSyncs records the syncs of w's volume until the test ends. Only one test may do so at a time.
func observeSyncs(t *testing.T, w *world) *syncs {
	s := &syncs{}
	s.reset()
	root := w.volume.Root()
	disk.Observe(func(call, path string) {
		if !strings.HasPrefix(path, root) {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls = append(s.calls, call+" "+path)
		if call == "fsync" {
			s.paths[path] = true
		}
	})
	t.Cleanup(func() { disk.Observe(nil) })
	return s
}

// mustBeDurable fails the test unless the new files of the tree at path, and its folders where the file system needs it, are
// synced, with the paths that they had while the tree was built.
func (s *syncs) mustBeDurable(t *testing.T, path, built string) {
	t.Helper()
	folders := s.has(built)
	testenv.Must(0, filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(file, &st); err != nil {
			return err
		}
		name := built + strings.TrimPrefix(file, path)
		isManifest := entry.Name() == "lockstep-index" // a link to the index
		isNew := entry.Type().IsRegular() && st.Size > 0 && !isManifest && (st.Nlink == 1 || entry.Name() == "index")
		if (isNew || entry.IsDir() && folders) && !s.has(name) {
			t.Errorf("%s is not on disk", name)
		}
		return nil
	}))(t)
}

// TestDurableBeforeTheFlip checks at the flip that everything it names is on disk, and that no sync waits for the whole file
// system.
func TestDurableBeforeTheFlip(t *testing.T) { // not parallel: see observeSyncs
	w := newWorld(t)
	if kind := testenv.Must(fileSystem(w.volume.Root()))(t); kind == unix.TMPFS_MAGIC || kind == unix.BTRFS_SUPER_MAGIC {
		t.Skip("syncs nothing, or commits all folders at once")
	}
	seen := observeSyncs(t, w)
	w.volume.cfg.Step = func(step string) {
		switch step {
		case "built":
			f := w.volume.folder(repoPath(t, widgets))
			trees := testenv.Must(os.ReadDir(f.trees()))(t)
			newest := trees[len(trees)-1].Name()
			seen.mustBeDurable(t, f.tree(newest), f.build(w.fence.Load()))
			if seen.has(f.build(w.fence.Load())) && !seen.has(f.trees()) {
				t.Error("the tree's name is not on disk")
			}
			if !seen.has(f.fence()) {
				t.Error("the fence is not on disk")
			}
			seen.reset()
		case "flipped":
			if !seen.has(w.path("acme")) {
				t.Error("the flip is not on disk")
			}
		}
		for _, call := range seen.calls {
			if strings.HasPrefix(call, "syncfs") {
				t.Errorf("at %s: %s", step, call)
			}
		}
	}
	files := map[string]string{}
	for i := range 200 { // more than the largest number of concurrent fsyncs
		files[filepath.Join("d"+string(rune('a'+i%20)), "f"+strings.Repeat("x", i/20))] = "1"
	}
	w.create(files)
	w.sync("")
	w.push(map[string]string{"da/f": "2", "new/folder/file": "1"})
	w.sync("")
}

// TestNothingIsSyncedWithDurabilityProcess pushes to a repository that is on the volume.
func TestNothingIsSyncedWithDurabilityProcess(t *testing.T) { // not parallel: see observeSyncs
	w := newProcessWorld(t)
	w.create(map[string]string{"a": "1", "b": "1"})
	w.sync("")
	w.push(map[string]string{"a": "2", "d/e": "1"})
	seen := observeSyncs(t, w)
	w.sync("")
	if len(seen.calls) > 0 {
		t.Errorf("synced: %q", seen.calls)
	}
	testenv.Must(0, w.volume.SyncPublished())(t)
	if len(seen.calls) == 0 || !strings.HasPrefix(seen.calls[0], "syncfs") {
		t.Errorf("SyncPublished: %q", seen.calls)
	}
}

func fileSystem(path string) (int64, error) {
	var st unix.Statfs_t
	err := unix.Statfs(path, &st)
	return int64(st.Type), err
}
