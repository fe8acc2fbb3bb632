package volume

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

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

// remove deletes path and everything below it. It calls mayGoOn before each deletion, and stops once that
// returns false.
func remove(path string, mayGoOn func() bool) (goOn bool) {
	if !mayGoOn() {
		return false
	}
	if os.Remove(path) == nil {
		return true
	}
	if info, err := os.Lstat(path); err != nil || !info.IsDir() { // a link that cannot be removed must not be followed
		return true
	}
	entries, _ := disk.ReadDir(path)
	for _, entry := range entries {
		if !remove(filepath.Join(path, entry.Name()), mayGoOn) {
			return false
		}
	}
	if len(entries) > 0 {
		_ = os.Remove(path)
	}
	return true
}

// muchTrash is the number of trash entries at which a sync deletes them itself, so that the janitor does not
// fall behind.
const muchTrash = 16

// janitor deletes trash in the background, one entry at a time, because deleting a tree takes as long as
// building one. It pauses while this process syncs, which would have to share the disk with it. It needs no
// lease: trash is not in use.
type janitor struct {
	mu      sync.Mutex
	todo    []folder
	working bool
	closed  bool
	syncs   int           // in progress
	idle    chan struct{} // closed to end a pause: see resume; nil unless the janitor waits for it
	work    sync.WaitGroup
}

// The janitor pauses for at most maxPause for one folder's trash, and not at all while the trash of
// manyFolders waits, so that constant syncs do not fill the disk.
const (
	maxPause    = 5 * time.Second
	manyFolders = 16
)

// syncBegins pauses the deletions until the returned function is called.
func (j *janitor) syncBegins() (ends func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.syncs++
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.syncs--; j.syncs == 0 {
			j.resume()
		}
	}
}

// resume ends the janitor's pause. The caller holds mu.
func (j *janitor) resume() {
	if j.idle != nil {
		close(j.idle)
		j.idle = nil
	}
}

// pauser returns a function that pauses while a sync is in progress, as maxPause says. It returns false once
// the janitor is closed.
func (j *janitor) pauser() func() bool {
	left := maxPause
	return func() bool {
		j.mu.Lock()
		for j.syncs > 0 && !j.closed && left > 0 && len(j.todo) < manyFolders {
			if j.idle == nil {
				j.idle = make(chan struct{})
			}
			idle, began := j.idle, time.Now()
			j.mu.Unlock()
			timer := time.NewTimer(left)
			select {
			case <-idle:
			case <-timer.C:
			}
			timer.Stop()
			left -= time.Since(began)
			j.mu.Lock()
		}
		defer j.mu.Unlock()
		return !j.closed
	}
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
	if j.closed || slices.Contains(j.todo, f) {
		return
	}
	j.todo = append(j.todo, f)
	if len(j.todo) == manyFolders {
		j.resume()
	}
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
		mayGoOn := j.pauser()
		entries, _ := disk.ReadDir(f.trash())
		for _, entry := range entries {
			remove(filepath.Join(f.trash(), entry.Name()), mayGoOn)
		}
	}
}

// close stops deleting and waits. The next sync deletes the rest.
func (j *janitor) close() {
	j.mu.Lock()
	j.closed = true
	j.resume()
	j.mu.Unlock()
	j.work.Wait()
}

// AwaitDeletions waits until everything discarded so far is deleted.
func (v *Volume) AwaitDeletions() { v.janitor.work.Wait() }
