package volume

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

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
func (f folder) emptyTrash() {
	entries, err := disk.ReadDir(f.trash())
	if err != nil {
		return
	}
	for _, entry := range entries {
		_ = os.RemoveAll(filepath.Join(f.trash(), entry.Name()))
	}
}

// muchTrash is the number of trash entries at which a sync deletes them itself, so that the janitor does not
// fall behind.
const muchTrash = 16

// janitor deletes trash in the background, one entry at a time, because deleting a tree takes as long as
// building one. It needs no lease: trash is not in use.
type janitor struct {
	mu      sync.Mutex
	todo    []folder
	working bool
	closed  atomic.Bool
	work    sync.WaitGroup
}

// add queues the folder's trash for deletion, or deletes it now if there is a lot.
func (j *janitor) add(f folder) {
	entries, err := disk.ReadDir(f.trash())
	switch {
	case err != nil || len(entries) == 0:
	case len(entries) >= muchTrash:
		f.emptyTrash()
	default:
		j.queue(f)
	}
}

// queue queues the folder's trash for deletion.
func (j *janitor) queue(f folder) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed.Load() || slices.Contains(j.todo, f) {
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
		if len(j.todo) == 0 || j.closed.Load() {
			j.working = false
			j.mu.Unlock()
			return
		}
		f := j.todo[0]
		j.todo = j.todo[1:]
		j.mu.Unlock()
		entries, _ := disk.ReadDir(f.trash())
		for _, entry := range entries {
			if j.closed.Load() {
				break
			}
			_ = os.RemoveAll(filepath.Join(f.trash(), entry.Name()))
		}
	}
}

// close stops deleting and waits for the current entry. The next sync deletes the rest.
func (j *janitor) close() {
	j.closed.Store(true)
	j.work.Wait()
}

// AwaitDeletions waits until everything discarded so far is deleted.
func (v *Volume) AwaitDeletions() { v.janitor.work.Wait() }
