package gitrepo

import (
	"os"

	"golang.org/x/sys/unix"
)

// dir is an open folder. Every operation takes one name in it and follows no symbolic link, so that
// nothing a tree contains, and nobody who swaps a folder for a link, can lead it elsewhere.
type dir struct {
	fd   int
	path string // for errors
}

const dirFlags = unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

func openDir(path string) (dir, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|dirFlags, 0)
	if err != nil {
		return dir{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return dir{fd, path}, nil
}

func (d dir) close() { _ = unix.Close(d.fd) }

func (d dir) failed(op, name string, err error) error {
	return &os.PathError{Op: op, Path: d.path + "/" + name, Err: err}
}

// open opens a folder in d.
func (d dir) open(name string) (dir, error) {
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|dirFlags, 0)
	if err != nil {
		return dir{}, d.failed("open", name, err)
	}
	return dir{fd, d.path + "/" + name}, nil
}

// make makes a folder in d and opens it; the name must be free.
func (d dir) make(name string) (dir, error) {
	if err := unix.Mkdirat(d.fd, name, 0o755); err != nil {
		return dir{}, d.failed("mkdir", name, err)
	}
	return d.open(name)
}

// create makes a file in d; the name must be free.
func (d dir) create(name string, perm uint32) (*os.File, error) {
	fd, err := unix.Openat(d.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, perm)
	if err != nil {
		return nil, d.failed("create", name, err)
	}
	return os.NewFile(uintptr(fd), d.path+"/"+name), nil
}

// symlink makes a symbolic link in d; the name must be free.
func (d dir) symlink(target, name string) error {
	if err := unix.Symlinkat(target, d.fd, name); err != nil {
		return d.failed("symlink", name, err)
	}
	return nil
}

// link gives the file of that name in from the same name in d, which must be free.
func (d dir) link(from dir, name string) error {
	if err := unix.Linkat(from.fd, name, d.fd, name, 0); err != nil {
		return d.failed("link", name, err)
	}
	return nil
}

// stat looks at an entry itself, not at what a link points to.
func (d dir) stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return st, d.failed("stat", name, err)
	}
	return st, nil
}
