package checkout

import (
	"os"
	"path/filepath"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"
)

// fileModes are the types and permissions that new files get in a folder. They follow from the umask and from
// default ACLs.
type fileModes struct{ regular, executable uint32 }

// probeModes creates and removes files in dst, which has no .git.
func probeModes(dst string) (modes fileModes, err error) {
	path := filepath.Join(dst, ".git") // no file of a tree has this name
	for mode, perm := range map[*uint32]os.FileMode{&modes.regular: permRegular, &modes.executable: permExecutable} {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, perm)
		if err != nil {
			return fileModes{}, err
		}
		var st unix.Stat_t
		err = unix.Fstat(int(file.Fd()), &st)
		_ = file.Close()
		if removeErr := os.Remove(path); err == nil {
			err = removeErr
		}
		if err != nil {
			return fileModes{}, err
		}
		*mode = st.Mode
	}
	return modes, nil
}

// The permissions of files, before the umask.
const (
	permRegular    = 0o644
	permExecutable = 0o755
)

// fit reports whether a file on disk has the type and permissions of a new one.
func (m fileModes) fit(mode filemode.FileMode, onDisk uint32) bool {
	switch mode {
	case filemode.Symlink:
		return onDisk&unix.S_IFMT == unix.S_IFLNK
	case filemode.Executable:
		return onDisk == m.executable
	}
	return onDisk == m.regular
}
