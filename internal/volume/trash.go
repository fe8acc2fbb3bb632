package volume

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"lockstep/internal/disk"
)

// discard moves a file or folder out of sight, to be deleted.
func (f folder) discard(path string) error {
	if err := os.MkdirAll(f.trash(), 0o755); err != nil {
		return disk.Error("throw away "+path, err)
	}
	err := os.Rename(path, filepath.Join(f.trash(), rand.Text()))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return disk.Error("throw away "+path, err)
}

// emptyTrash deletes what was thrown away. What resists stays for the next time.
func (f folder) emptyTrash() { f.emptyTrashUntil(func() bool { return false }) }

func (f folder) emptyTrashUntil(enough func() bool) {
	entries, err := disk.ReadDir(f.trash())
	if err != nil {
		return
	}
	for _, entry := range entries {
		path := filepath.Join(f.trash(), entry.Name())
		parts, _ := disk.ReadDir(path) // of a tree; of anything else none
		for _, part := range parts {
			if enough() {
				return
			}
			_ = os.RemoveAll(filepath.Join(path, part.Name()))
		}
		_ = os.RemoveAll(path)
	}
}

// muchTrash is from how many things on a sync deletes them itself: it throws away no more than others keep
// up with.
const muchTrash = 16

// janitor deletes what syncs have thrown away, one thing after the other and when they are done: a tree
// takes as long to delete as to build, and nobody waits for that. What is in the trash is no tree any more,
// and nobody's: it takes no lease.
type janitor struct {
	mu      sync.Mutex
	todo    []folder
	working bool
	closed  bool
	work    sync.WaitGroup
}

// see has the folder's trash emptied soon; at once when there is much of it.
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

// close returns when nothing is being deleted any more. What is left is for whoever syncs next.
func (j *janitor) close() {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.work.Wait()
}

// AwaitDeletions returns when everything that syncs have thrown away so far is deleted.
func (v *Volume) AwaitDeletions() { v.janitor.work.Wait() }
