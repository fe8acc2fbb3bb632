package workspace

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// scratch is the private folder of one [Exec], which locks it (flock) while the workspace is in use.
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
		lock, err := lockFolder(dir, unix.LOCK_SH)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EWOULDBLOCK): // swept before it was locked
			continue
		case err != nil:
			return scratch{}, errors.Join(err, os.Remove(dir))
		}
		if _, err := os.Lstat(dir); err == nil {
			return scratch{dir, lock}, nil
		}
		_ = lock.Close()
	}
}

// lockFolder opens a folder and locks it, without waiting.
func lockFolder(dir string, how int) (*os.File, error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, &os.PathError{Op: "lock", Path: dir, Err: err}
	}
	return file, nil
}

func (s scratch) layers() layers { return layers{s.dir} }

// target creates the folder in which the command runs. It has the name of the repository.
func (s scratch) target(name string) (string, error) {
	name, _, _ = strings.Cut(filepath.Base(name), "@")
	dir := filepath.Join(s.dir, "at", name)
	return dir, os.MkdirAll(dir, 0o755)
}

// remove removes the folder and releases its lock.
func (s scratch) remove() error { return errors.Join(removeAll(s.dir), s.lock.Close()) }

// sweep removes the scratch folders of this user in base that no process has locked, as far as possible.
func sweep(base string) {
	entries, _ := os.ReadDir(base)
	for _, entry := range entries {
		dir := filepath.Join(base, entry.Name())
		var st unix.Stat_t
		if !strings.HasPrefix(entry.Name(), scratchPrefix) || !entry.IsDir() || unix.Lstat(dir, &st) != nil ||
			int(st.Uid) != os.Geteuid() {
			continue
		}
		if lock, err := lockFolder(dir, unix.LOCK_EX); err == nil {
			_ = removeAll(dir)
			_ = lock.Close()
		}
	}
}
