package volume

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"lockstep/internal/disk"
)

// discard moves a file or folder to the trash, to be deleted later.
func (f folder) discard(path string) error {
	if err := os.MkdirAll(f.trash(), 0o755); err != nil {
		return disk.Error("discard "+path, err)
	}
	err := os.Rename(path, filepath.Join(f.trash(), rand.Text()))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return disk.Error("discard "+path, err)
}

// emptyTrash deletes the trash. Files that cannot be deleted stay for the next time.
func (f folder) emptyTrash() { f.emptyTrashUntil(func() bool { return false }) }

// emptyTrashUntil is emptyTrash, except that it stops early once stop returns true.
func (f folder) emptyTrashUntil(stop func() bool) {
	entries, err := disk.ReadDir(f.trash())
	if err != nil {
		return
	}
	for _, entry := range entries {
		path := filepath.Join(f.trash(), entry.Name())
		parts, _ := disk.ReadDir(path) // none unless path is a folder
		for _, part := range parts {
			if stop() {
				return
			}
			_ = os.RemoveAll(filepath.Join(path, part.Name()))
		}
		_ = os.RemoveAll(path)
	}
}

// muchTrash is the number of trash entries at which a sync deletes them itself, so that the janitor does not fall behind.
const muchTrash = 16

// janitor deletes trash in the background, one entry at a time, because deleting a tree takes as long as building one.
// It needs no lease: trash is not in use.
type janitor struct {
	mu      sync.Mutex
	todo    []folder
	working bool
	closed  bool
	work    sync.WaitGroup
}

// add queues the folder's trash for deletion, or deletes it now if there is a lot.
func (j *janitor) add(f folder) {
	entries, err := disk.ReadDir(f.trash())
	switch {
	case err != nil || len(entries) == 0:
		return
	case len(entries) >= muchTrash:
		f.emptyTrash()
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return
	}
	j.todo = append(j.todo, f)
	if !j.working {
		j.working = true
		j.work.Go(j.run)
	}
}

func (j *janitor) run() {
	for {
		j.mu.Lock()
		if len(j.todo) == 0 || j.closed {
			j.working = false
			j.mu.Unlock()
			return
		}
		f := j.todo[0]
		j.todo = j.todo[1:]
		j.mu.Unlock()
		f.emptyTrashUntil(j.isClosed)
	}
}

func (j *janitor) isClosed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.closed
}

// close stops deleting and waits. The next sync deletes the rest.
func (j *janitor) close() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.work.Wait()
}

// AwaitDeletions waits until everything discarded so far is deleted.
func (v *Volume) AwaitDeletions() { v.janitor.work.Wait() }
