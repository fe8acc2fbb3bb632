package volume

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// claim locks a retired tree against readers. ok is false if one pins it. Otherwise nobody can pin it
// until release, before which the caller must move it away. The caller holds the file lock.
func (f folder) claim(tree string) (release func(), ok bool, err error) {
	release, ok, err = claimFile(checkout.GitDirOf(f.tree(tree)).Pin())
	return release, ok, disk.Error("claim a retired tree", err)
}

// claimFile locks a file exclusively, without waiting. ok is false if others have locked it. A missing file,
// as of an incomplete tree, is locked by nobody else.
func claimFile(path string) (release func(), ok bool, err error) {
	// NFS requires a file to be open for writing to lock it exclusively.
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return func() {}, true, nil
	case err != nil:
		return nil, false, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		// A forked child that has not called exec yet may share the open file, so closing alone may not unlock it.
		return func() { _ = unix.Flock(int(file.Fd()), unix.LOCK_UN); _ = file.Close() }, true, nil
	}
	_ = file.Close()
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return nil, false, nil
	}
	return nil, false, err
}

// discardUnpinned discards a tree unless a reader has it pinned.
func (f folder) discardUnpinned(tree string) (gone bool, err error) {
	release, ok, err := f.claim(tree)
	if err != nil || !ok {
		return false, err
	}
	defer release()
	return true, f.discard(f.tree(tree))
}
