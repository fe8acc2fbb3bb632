package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/testenv"
)

// TestDeletionsKeepUpWithConstantSyncs has the trash of many folders deleted while a sync never ends.
func TestDeletionsKeepUpWithConstantSyncs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) { // in which no pause ends by itself
		j := &janitor{}
		defer j.close()
		defer j.syncBegins()()
		var folders []folder
		for i := range 2 * manyFolders {
			f := folder{filepath.Join(root, fmt.Sprint(i))}
			testenv.Must(0, os.MkdirAll(filepath.Join(f.trash(), "tree", "sub"), 0o755))(t)
			folders = append(folders, f)
			for range 3 {
				j.add(f)
			}
		}
		if queued := len(j.todoNow()); queued > len(folders) {
			t.Errorf("%d folders are queued", queued)
		}
		synctest.Wait()
		waiting := 0 // for the end of a pause
		for _, f := range folders {
			waiting += min(1, len(testenv.Must(disk.ReadDir(f.trash()))(t)))
		}
		if waiting > manyFolders {
			t.Errorf("the trash of %d folders still waits", waiting)
		}
	})
}

func (j *janitor) todoNow() []folder {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.todo
}

// TestStoppedPreparationDeletesNothing stops a preparation of a repository with much trash, while another is synced.
func TestStoppedPreparationDeletesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.sync("")
	defer w.volume.janitor.syncBegins()()
	f := w.volume.folder(repoPath(t, widgets))
	for i := range 2 * muchTrash {
		testenv.Must(0, os.MkdirAll(filepath.Join(f.trash(), fmt.Sprint(i)), 0o755))(t)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	wanted := errors.New("wanted")
	cancel(wanted)
	if _, err := w.volume.Prepare(ctx, w.prepareRequest("refs/heads/main")); !errors.Is(err, wanted) {
		t.Fatal(err)
	}
	if left := len(testenv.Must(disk.ReadDir(f.trash()))(t)); left < 2*muchTrash {
		t.Errorf("the trash has %d entries", left)
	}
}

// TestJanitorPausesDuringSyncs has trash while something is being synced: it is deleted when the sync ends, or after maxPause.
func TestJanitorPausesDuringSyncs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		j := &janitor{}
		defer j.close()
		trash := func(name string) (isThere func() bool) {
			f := folder{filepath.Join(root, name)}
			testenv.Must(0, os.MkdirAll(filepath.Join(f.trash(), "tree", "sub"), 0o755))(t)
			j.add(f)
			synctest.Wait()
			return func() bool { return len(testenv.Must(disk.ReadDir(f.trash()))(t)) > 0 }
		}
		if idle := trash("idle"); idle() {
			t.Error("nothing is deleted while nothing is synced")
		}
		one, another := j.syncBegins(), j.syncBegins()
		first := trash("first")
		one()
		if synctest.Wait(); !first() {
			t.Error("deleted while another sync goes on")
		}
		another()
		if synctest.Wait(); first() {
			t.Error("not deleted after the last sync")
		}
		defer j.syncBegins()()
		second := trash("second")
		time.Sleep(maxPause - time.Millisecond)
		if synctest.Wait(); !second() {
			t.Error("deleted too early")
		}
		time.Sleep(2 * time.Millisecond)
		if synctest.Wait(); second() {
			t.Error("a sync without end keeps trash")
		}
	})
}

// TestDeletionFollowsNoLink deletes a folder of a tree that may not be written to, and has a link that leads out of it.
func TestDeletionFollowsNoLink(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	victim, trash := filepath.Join(root, "victim"), filepath.Join(root, "trash")
	for _, dir := range []string{victim, trash} {
		testenv.Must(0, os.Mkdir(dir, 0o755))(t)
	}
	testenv.Must(0, os.WriteFile(filepath.Join(victim, "file"), nil, 0o644))(t)
	testenv.Must(0, os.Symlink(victim, filepath.Join(trash, "link")))(t)
	testenv.Must(0, os.Chmod(trash, 0o555))(t)
	t.Cleanup(func() { _ = os.Chmod(trash, 0o755) })
	done := make(chan struct{})
	go func() {
		defer close(done)
		if os.Geteuid() == 0 { // for whom no folder is read-only
			const nobody = 65534
			for _, path := range []string{filepath.Dir(root), root, victim, trash, filepath.Join(victim, "file")} {
				_ = os.Chown(path, nobody, nobody)
			}
			runtime.LockOSThread() // the thread ends with the goroutine
			_, _ = unix.SetfsuidRetUid(nobody)
		}
		remove(trash, func() bool { return true })
	}()
	<-done
	if _, err := os.Lstat(filepath.Join(victim, "file")); err != nil {
		t.Errorf("a file outside the trash: %v", err)
	}
}
