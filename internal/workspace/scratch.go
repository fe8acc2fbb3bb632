package workspace

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/volume"
)

// scratch is the private folder of one [Exec]. It is locked (flock) while the workspace is in use: by Exec and by the processes of
// its command, which inherit the lock.
type scratch struct {
	dir  string
	lock *os.File
}

const scratchPrefix = "lockstep-workspace-"

// newScratch creates a scratch folder in base.
func newScratch(base string) (scratch, error) {
	for {
		dir, err := os.MkdirTemp(base, scratchPrefix)
		if err != nil {
			return scratch{}, err
		}
		lock, err := lockShared(dir)
		switch {
		case errors.Is(err, os.ErrNotExist): // swept before it was locked
			continue
		case err != nil:
			return scratch{}, errors.Join(err, os.Remove(dir))
		case isOpenAt(lock, dir):
			return scratch{dir, lock}, nil
		}
		_ = lock.Close()
	}
}

// lockShared opens a file or folder and locks it. It waits for exclusive locks, which are held only briefly.
func lockShared(path string) (*os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_SH)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(&os.PathError{Op: "lock", Path: path, Err: err}, file.Close())
		}
	}
}

// isOpenAt reports whether path is still the open file.
func isOpenAt(file *os.File, path string) bool {
	open, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(path)
	return err == nil && os.SameFile(open, named)
}

func (s scratch) layers() layers { return layers{s.dir} }

// target creates the folder in which the command runs. It has the name of the repository.
func (s scratch) target(name string) (string, error) {
	name, _, _ = strings.Cut(filepath.Base(name), "@")
	dir := filepath.Join(s.dir, "at", name)
	return dir, os.MkdirAll(dir, 0o755)
}

const describedIn = "workspace.json"

// describe stores what [List] shows.
func (s scratch) describe(w volume.Workspace) error {
	content, err := json.Marshal(w)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, describedIn), content, 0o600)
}

// remove removes the folder and releases its lock.
func (s scratch) remove() error { return errors.Join(removeAll(s.dir), s.lock.Close()) }

// scratches lists the scratch folders of this user in base.
func scratches(base string) (dirs []string, err error) {
	entries, err := os.ReadDir(base)
	for _, entry := range entries {
		path := filepath.Join(base, entry.Name())
		var st unix.Stat_t
		if strings.HasPrefix(entry.Name(), scratchPrefix) && entry.IsDir() && unix.Lstat(path, &st) == nil && int(st.Uid) == os.Geteuid() {
			dirs = append(dirs, path)
		}
	}
	return dirs, err
}

// Sweep removes the folders of killed [Exec]s of this user in base, and returns their paths.
func Sweep(base string) (removed []string, err error) {
	dirs, err := scratches(base)
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		gone, sweepErr := sweep(dir)
		err = errors.Join(err, sweepErr)
		if gone {
			removed = append(removed, dir)
		}
	}
	return removed, err
}

// minAge is the age at which a scratch folder without a description is no longer about to be locked.
const minAge = time.Minute

// sweep removes a scratch folder that no process has locked.
func sweep(dir string) (removed bool, err error) {
	if _, err := os.Lstat(filepath.Join(dir, describedIn)); err != nil {
		if info, err := os.Lstat(dir); err != nil || time.Since(info.ModTime()) < minAge {
			return false, nil
		}
	}
	unlock, free := claim(dir)
	if !free {
		return false, nil
	}
	defer unlock()
	err = removeAll(dir)
	return err == nil, err
}

// claim locks the folder of a workspace exclusively if no Exec or Create has locked it.
func claim(dir string) (unlock func(), free bool) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, false
	}
	if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		_ = file.Close()
		return nil, false
	}
	return func() { _ = file.Close() }, true
}
