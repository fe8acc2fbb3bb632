package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// powerCut reopens the volume as the first process of another boot.
func (w *world) powerCut(cfg Config) {
	w.t.Helper()
	w.volume = w.open(w.volume.Root(), cfg)
	w.volume.boot += "-next"
}

// recover verifies what Recover lists and returns the number of problems found by repository.
func (w *world) recover() map[string]int {
	w.t.Helper()
	found := map[string]int{}
	_, err := w.volume.Recover(w.t.Context(), func(ctx context.Context, repo events.RepoPath) error {
		report, err := w.volume.Verify(ctx, VerifyRequest{Repo: repo, Fence: w.fence.Add(1), Repair: true})
		found[repo.String()] = report.Found
		return err
	})
	testenv.Must(0, err)(w.t)
	return found
}

// newProcessWorld is a world with DurabilityProcess.
func newProcessWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.volume = w.open(w.volume.Root(), Config{Durability: DurabilityProcess})
	return w
}

// TestUncleanStopIsRepaired loses the content of a published file, as a power cut may, in the tree alone, or with the store.
func TestUncleanStopIsRepaired(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, w *world){
		"truncated file": func(t *testing.T, w *world) { testenv.Must(0, os.Truncate(w.path(widgets, "a"), 0))(t) },
		"zeroed file": func(t *testing.T, w *world) {
			testenv.Must(0, os.WriteFile(w.path(widgets, "a"), make([]byte, 7), 0o644))(t)
		},
		"empty index": func(t *testing.T, w *world) { testenv.Must(0, os.Truncate(w.path(widgets, ".git", "index"), 0))(t) },
		"missing tree": func(t *testing.T, w *world) {
			testenv.Must(0, os.RemoveAll(testenv.Must(filepath.EvalSymlinks(w.path(widgets)))(t)))(t)
		},
		"truncated objects": func(t *testing.T, w *world) {
			testenv.Must(0, os.Truncate(w.path(widgets, "a"), 0))(t)
			store := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t)
			for _, path := range testenv.Must(filepath.Glob(filepath.Join(store.dir, "objects", "??", "*")))(t) {
				testenv.Must(0, os.Chmod(path, 0o600))(t)
				testenv.Must(0, os.Truncate(path, 0))(t)
			}
		},
		"empty refs": func(t *testing.T, w *world) {
			testenv.Must(0, os.Truncate(w.path(widgets, "a"), 0))(t)
			store := testenv.Must(w.volume.folder(repoPath(t, widgets)).currentStore(nil))(t)
			testenv.Must(0, os.Truncate(filepath.Join(store.dir, "packed-refs"), 0))(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newProcessWorld(t)
			w.create(map[string]string{"a": "1", "same": "same"})
			w.sync("")
			commit := w.push(map[string]string{"a": "content"})
			w.sync("")
			damage(t, w)

			w.powerCut(Config{})
			if found := w.recover(); found[widgets] == 0 {
				t.Fatalf("found %v", found)
			}
			if again := w.recover(); len(again) > 0 {
				t.Errorf("verified again: %v", again)
			}
			if name != "missing tree" {
				testenv.Must(os.ReadFile(w.path(widgets, "same")))(t) // readers keep the damaged tree meanwhile
			}
			if res := w.sync(""); !res.Published || res.After != commit {
				t.Errorf("the next sync: %+v", res)
			}
			w.mustRead(widgets, map[string]string{"a": "content", "same": "same"})
			w.mustBeSound(widgets, commit)
		})
	}
}

// TestOnlyUnsyncedIsVerified stops the machine after a sync of the volume and one more push.
func TestOnlyUnsyncedIsVerified(t *testing.T) {
	t.Parallel()
	w := newProcessWorld(t)
	w.create(map[string]string{"a": "1"})
	testenv.Must(w.git.Create(t.Context(), "acme/other", map[string]string{"a": "1"}))(t)
	other := w.request("")
	other.Repo, other.URL = repoPath(t, "acme/other"), w.git.URL("acme/other")
	testenv.Must(w.volume.Sync(t.Context(), other))(t)
	w.backdate("acme/other", time.Hour)
	testenv.Must(0, w.volume.SyncPublished())(t)
	w.sync("")

	w.powerCut(Config{Durability: DurabilityProcess})

	if found := w.recover(); len(found) != 1 || found[widgets] != 0 {
		t.Errorf("verified %v, want widgets without problems", found)
	}
}

// backdate makes everything of a repository older.
func (w *world) backdate(repo string, by time.Duration) {
	w.t.Helper()
	past := time.Now().Add(-by)
	f := w.volume.folder(repoPath(w.t, repo))
	for _, pattern := range []string{"trees", "trees/*", "stores", "stores/*", "stores/*/packed-refs"} {
		for _, path := range testenv.Must(filepath.Glob(filepath.Join(f.dir, pattern)))(w.t) {
			testenv.Must(0, os.Chtimes(path, past, past))(w.t)
		}
	}
	link := w.path(repo)
	target := testenv.Must(os.Readlink(link))(w.t)
	testenv.Must(0, lutimes(link, past))(w.t)
	if now := testenv.Must(os.Readlink(link))(w.t); now != target {
		w.t.Fatal("the link changed")
	}
}

func TestFailedVerificationIsRepeated(t *testing.T) {
	t.Parallel()
	w := newProcessWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.powerCut(Config{})
	broken := errors.New("broken")
	if _, err := w.volume.Recover(t.Context(), func(context.Context, events.RepoPath) error { return broken }); !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	if found := w.recover(); len(found) != 1 {
		t.Errorf("verified %v", found)
	}
}

// TestOneProcessRecovers calls Recover while another process verifies.
func TestOneProcessRecovers(t *testing.T) {
	t.Parallel()
	w := newProcessWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	w.powerCut(Config{})
	calls := 0
	verified := testenv.Must(w.volume.Recover(t.Context(), func(context.Context, events.RepoPath) error {
		calls++
		w.recover()
		return nil
	}))(t)
	if calls != 1 || verified != 1 {
		t.Errorf("verified %d in %d calls", verified, calls)
	}
}

// TestDurabilitySyncsTheRecord follows the record of this boot through syncs and a change of the setting.
func TestDurabilitySyncsTheRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	records := func() []os.DirEntry {
		entries, _ := os.ReadDir(w.volume.unsyncedDir())
		return entries
	}
	testenv.Must(0, w.volume.SyncPublished())(t)
	if len(records()) != 0 {
		t.Errorf("records %v with durability power", records())
	}
	w.volume = w.open(w.volume.Root(), Config{Durability: DurabilityProcess})
	w.push(map[string]string{"a": "2"})
	w.sync("")
	record := w.volume.unsyncedRecord(w.volume.boot)
	past := time.Now().Add(-time.Hour)
	testenv.Must(0, os.Chtimes(record, past, past))(t)
	testenv.Must(0, w.volume.SyncPublished())(t)
	synced := testenv.Must(os.Stat(record))(t).ModTime()
	if !synced.After(past) {
		t.Error("a sync after a push left the record as it was")
	}
	testenv.Must(0, os.Chtimes(record, past, past))(t)
	testenv.Must(0, w.volume.SyncPublished())(t)
	if at := testenv.Must(os.Stat(record))(t).ModTime(); at.After(past.Add(time.Second)) {
		t.Error("synced although nothing was published")
	}
	w.volume = w.open(w.volume.Root(), Config{})
	testenv.Must(0, w.volume.SyncPublished())(t)
	if len(records()) != 0 {
		t.Errorf("records %v after the change to durability power", records())
	}
}

// TestFenceKeepsItsLength replaces the fence of an older version and overwrites its own.
func TestFenceKeepsItsLength(t *testing.T) {
	t.Parallel()
	f := folder{t.TempDir()}
	testenv.Must(0, os.WriteFile(f.fence(), []byte("8\n"), 0o644))(t)
	for _, fence := range []uint64{9, 10, 1 << 63} {
		testenv.Must(0, f.record(t.Context(), fence))(t)
		if got := testenv.Must(f.floor())(t); got != fence {
			t.Errorf("read %d, want %d", got, fence)
		}
		if content := testenv.Must(os.ReadFile(f.fence()))(t); len(content) != 21 || !strings.HasSuffix(string(content), "\n") {
			t.Errorf("the file has %q", content)
		}
	}
}

// lutimes sets the mtime of a symbolic link.
func lutimes(path string, at time.Time) error {
	stamp := unix.NsecToTimespec(at.UnixNano())
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{stamp, stamp}, unix.AT_SYMLINK_NOFOLLOW)
}
