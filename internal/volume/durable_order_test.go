package volume

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// durable models what a power cut leaves of a volume whose file system promises no more than fsync(2): of each file the
// content, and of each folder the names, as they were when it was last synced. Of symbolic links it knows the names alone.
type durable struct {
	t    *testing.T
	root string

	mu      sync.Mutex
	calls   []string // "fsync path", … since the last reset
	files   map[fileID]string
	folders map[fileID]map[string]fileID
}

// fileID identifies a file, also among those that had its inode before.
type fileID struct {
	ino       uint64
	sec, nsec int64 // of its birth
}

// observeDisk follows the syncs of w's volume until the test ends. Only one test may do so at a time.
func observeDisk(t *testing.T, w *world) *durable {
	d := &durable{t: t, root: w.volume.Root(), files: map[fileID]string{}, folders: map[fileID]map[string]fileID{}}
	disk.Observe(func(call, path string) {
		if strings.HasPrefix(path, d.root) {
			d.synced(call, path)
		}
	})
	t.Cleanup(func() { disk.Observe(nil) })
	return d
}

func (d *durable) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = nil
}

func (d *durable) synced(call, path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, call+" "+strings.TrimPrefix(path, d.root))
	info, err := os.Lstat(path)
	switch {
	case err != nil: // a temporary file
	case info.IsDir():
		names := map[string]fileID{}
		for _, entry := range testenv.Must(os.ReadDir(path))(d.t) {
			if at := filepath.Join(path, entry.Name()); isThere(d.t, at) { // not a temporary file of another goroutine
				names[entry.Name()] = idOf(d.t, at)
			}
		}
		d.folders[idOf(d.t, path)] = names
	default:
		d.files[idOf(d.t, path)] = string(testenv.Must(os.ReadFile(path))(d.t))
	}
}

func idOf(t *testing.T, path string) fileID {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		t.Error(err)
	}
	return fileID{st.Ino, st.Btime.Sec, int64(st.Btime.Nsec)}
}

// mustHaveName fails the test unless the names from the root down to path survive.
func (d *durable) mustHaveName(path string) {
	d.t.Helper()
	for ; len(path) > len(d.root); path = filepath.Dir(path) {
		if names := d.folders[idOf(d.t, filepath.Dir(path))]; names[filepath.Base(path)] != idOf(d.t, path) {
			d.t.Errorf("the name %s is not on disk", path)
		}
	}
}

// mustHave fails the test unless path, and a folder with everything below it, survives as it is.
func (d *durable) mustHave(path string) {
	d.t.Helper()
	d.mustHaveName(path)
	testenv.Must(0, filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			names, known := d.folders[idOf(d.t, path)]
			now := map[string]fileID{}
			for _, entry := range testenv.Must(os.ReadDir(path))(d.t) {
				now[entry.Name()] = idOf(d.t, filepath.Join(path, entry.Name()))
			}
			if !known || !maps.Equal(names, now) {
				d.t.Errorf("%s has %q on disk (synced: %v), want %q", path, slices.Sorted(maps.Keys(names)), known, slices.Sorted(maps.Keys(now)))
			}
		case entry.Type().IsRegular():
			if content, known := d.files[idOf(d.t, path)]; !known || content != string(testenv.Must(os.ReadFile(path))(d.t)) {
				d.t.Errorf("%s is not on disk", path)
			}
		}
		return nil
	}))(d.t)
}

// mustBeDurable has the world check at each flip that everything it names is on disk, and later the name itself, and that no
// sync waits for the whole file system.
func (w *world) mustBeDurable(d *durable) {
	f := w.volume.folder(repoPath(w.t, widgets))
	w.volume.cfg.Step = func(step string) {
		d.mu.Lock()
		defer d.mu.Unlock()
		switch step {
		case "built":
			fence := w.fence.Load()
			trees := testenv.Must(filepath.Glob(f.tree(fmt.Sprint(fence, "-*"))))(w.t)
			if len(trees) != 1 {
				w.t.Fatalf("trees with fence %d: %q", fence, trees)
			}
			d.mustHave(trees[0])
			d.mustHave(f.fence())
			store := testenv.Must(checkout.GitDirOf(trees[0]).Store())(w.t)
			for _, part := range []string{"objects", "refs", "config", "HEAD"} {
				d.mustHave(filepath.Join(store, part))
			}
		case "retired": // after the flip
			d.mustHaveName(w.path(widgets))
		}
		for _, call := range d.calls {
			if strings.HasPrefix(call, "syncfs") {
				w.t.Errorf("at %s: %s", step, call)
			}
		}
	}
}

// TestDurableBeforeTheFlip publishes trees that are built, or updated from prepared ones, also if a reader has altered them.
func TestDurableBeforeTheFlip(t *testing.T) { // not parallel: see observeDisk
	w := newWorld(t)
	w.mustBeDurable(observeDisk(t, w))
	files := map[string]string{"empty": ""}
	for i := range 200 { // more than the largest number of concurrent fsyncs
		files[filepath.Join("d"+string(rune('a'+i%20)), "f"+strings.Repeat("x", i/20))] = "1"
	}
	idLen := len(w.create(files))
	testenv.Must(0, os.MkdirAll(w.path("acme"), 0o755))(t) // as a sync that was killed leaves it
	w.sync("")
	w.push(map[string]string{"da/f": "2", "new/folder/file": "1"})
	w.sync("")
	for _, edit := range []gitserver.Edit{
		{Write: map[string]string{"da/f": "3"}},
		{Write: map[string]string{"a/b/c/file": "1", "a/b/empty": ""}},
		{Delete: []string{"a/b/c/file", "db/f", "new"}},
		{Write: map[string]string{"a/b/c": "1"}, Delete: []string{"a/b/empty"}},
		{Delete: []string{"dc"}, Link: map[string]string{"dc": "dd", "l/i/nk": "x"}, Exec: map[string]string{"da/f": "3"}},
		{Submodule: map[string]string{"s/u/b": strings.Repeat("1", idLen)}, Delete: []string{"de/f", "df"}, Write: map[string]string{"df": "1"}},
		{Submodule: map[string]string{"s/u/b": strings.Repeat("2", idLen)}},
		{Delete: []string{"s"}, Write: map[string]string{"s/u": "", "empty": "no more"}},
	} {
		w.prepare()
		w.commit(gitserver.Main, edit)
		w.sync("")
	}
	w.prepare()
	testenv.Must(0, os.WriteFile(w.path(widgets, "dg", "f"), []byte("altered"), 0o644))(t)
	testenv.Must(0, os.Remove(filepath.Join(w.nextTree(), "dh", "f")))(t)
	commit := w.push(map[string]string{"da/f": "4"})
	w.sync("")
	w.mustBeSound(widgets, commit)
}

// TestRandomHistoriesAreDurable prepares a tree for each of many random pushes.
func TestRandomHistoriesAreDurable(t *testing.T) { // not parallel: see observeDisk
	w := newWorld(t)
	w.mustBeDurable(observeDisk(t, w))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	h := &editGenerator{files: map[string]string{}, rand: rand.New(rand.NewPCG(seed, 0))}
	w.create(h.next(40).Write)
	w.sync("")
	for range testenv.Form(8, 60) {
		w.prepare()
		commit := w.commit(gitserver.Main, h.next(6))
		w.sync("")
		w.mustBeSound(widgets, commit)
	}
}

// TestPushSyncsWhatItChanges pushes one file, whose next tree is prepared, to a repository of many folders.
func TestPushSyncsWhatItChanges(t *testing.T) { // not parallel: see observeDisk
	w := newWorld(t)
	files := map[string]string{}
	for i := range 100 {
		files[fmt.Sprintf("d%d/e/f", i)] = "1"
	}
	w.create(files)
	w.sync("")
	d := observeDisk(t, w)
	w.prepare()
	if n := len(d.calls); n < 200 {
		t.Errorf("%d syncs while preparing", n)
	}
	d.reset()
	w.push(map[string]string{"d7/e/f": "2"})
	w.sync("")
	for _, call := range d.calls {
		if _, inTree, ok := strings.Cut(call, "/trees/"); ok && strings.Contains(inTree, "/d") && !strings.Contains(inTree, "/d7/e") && !strings.Contains(inTree, "/.git/") {
			t.Errorf("unchanged: %s", call)
		}
	}
	const most = 50 // the new objects and the .git
	if len(d.calls) > most {
		t.Errorf("%d syncs: %q", len(d.calls), d.calls)
	}
}

// TestLFSFromAFailedSyncIsDurable has a sync that stores one object and fails for another.
func TestLFSFromAFailedSyncIsDurable(t *testing.T) { // not parallel: see observeDisk
	w := newWorld(t)
	server := w.git.LFS(widgets)
	w.mustBeDurable(observeDisk(t, w))
	_, bad := gitserver.LFSPointer("second")
	w.create(map[string]string{".gitattributes": lfsAttributes, "a.bin": server.Put("first"), "b.bin": server.Put("second")})
	w.commit(gitserver.Main, gitserver.Edit{Exec: map[string]string{"x.bin": server.Put("first")}})
	server.Set(gitserver.LFSHooks{Get: func(w http.ResponseWriter, _ *http.Request, oid string) bool {
		if oid != bad {
			return false
		}
		w.WriteHeader(http.StatusNotFound)
		return true
	}})
	for len(w.lfsObjects()) == 0 { // the other object may fail first
		if _, err := w.trySyncLFS(allLFS); err == nil {
			t.Fatal("synced without an object")
		}
	}
	server.Set(gitserver.LFSHooks{})
	w.syncLFS(allLFS)
	w.mustVerify()
}
