package disk

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is an open folder. Every operation takes one name in it and follows no symbolic link, so that
// nothing a tree contains, and nobody who swaps a folder for a link, can lead it elsewhere.
type Dir struct {
	fd   int
	path string // for errors
}

const dirFlags = unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

func openDir(path string) (Dir, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|dirFlags, 0)
	if err != nil {
		return Dir{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return Dir{fd, path}, nil
}

// Close closes the folder.
func (d Dir) Close() { _ = unix.Close(d.fd) }

func (d Dir) failed(op, name string, err error) error {
	return &os.PathError{Op: op, Path: d.path + "/" + name, Err: err}
}

// Open opens a folder in d.
func (d Dir) Open(name string) (Dir, error) {
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|dirFlags, 0)
	if err != nil {
		return Dir{}, d.failed("open", name, err)
	}
	return Dir{fd, d.path + "/" + name}, nil
}

// Make makes a folder in d and opens it; the name must be free.
func (d Dir) Make(name string) (Dir, error) {
	if err := unix.Mkdirat(d.fd, name, 0o755); err != nil {
		return Dir{}, d.failed("mkdir", name, err)
	}
	return d.Open(name)
}

// Create makes a file in d; the name must be free.
func (d Dir) Create(name string, perm uint32) (*os.File, error) {
	fd, err := unix.Openat(d.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, perm)
	if err != nil {
		return nil, d.failed("create", name, err)
	}
	return os.NewFile(uintptr(fd), d.path+"/"+name), nil
}

// OpenOrMake opens a folder in d, made if it is not there.
func (d Dir) OpenOrMake(name string) (Dir, error) {
	below, err := d.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return d.Make(name)
	}
	return below, err
}

// Remove removes a file, or an empty folder.
func (d Dir) Remove(name string, folder bool) error {
	flags := 0
	if folder {
		flags = unix.AT_REMOVEDIR
	}
	if err := unix.Unlinkat(d.fd, name, flags); err != nil {
		return d.failed("remove", name, err)
	}
	return nil
}

// Symlink makes a symbolic link in d; the name must be free.
func (d Dir) Symlink(target, name string) error {
	if err := unix.Symlinkat(target, d.fd, name); err != nil {
		return d.failed("symlink", name, err)
	}
	return nil
}

// Link gives the file of that name in from the same name in d, which must be free.
func (d Dir) Link(from Dir, name string) error {
	if err := unix.Linkat(from.fd, name, d.fd, name, 0); err != nil {
		return d.failed("link", name, err)
	}
	return nil
}

// Stat looks at an entry itself, not at what a link points to.
func (d Dir) Stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return st, d.failed("stat", name, err)
	}
	return st, nil
}

// Descent walks over the folders of a tree and keeps those open that lead to where it is: whoever
// visits a tree in the order of its paths opens each folder once.
type Descent struct {
	At   string // folder
	open []Dir  // from the root to it
}

// Descend begins at the root of a tree.
func Descend(path string) (*Descent, error) {
	root, err := openDir(path)
	if err != nil {
		return nil, err
	}
	return &Descent{open: []Dir{root}}, nil
}

// Close closes all folders that are open.
func (d *Descent) Close() {
	for _, open := range d.open {
		open.Close()
	}
	d.open = nil
}

// Enter goes to a folder, down from where it parts from the last one by step: [dir.open], or [dir.make]
// if each folder is entered for the first time. The folder returned is closed by the descent.
func (d *Descent) Enter(folder string, step func(parent Dir, name string) (Dir, error)) (Dir, error) {
	if len(d.open) == 0 {
		return Dir{}, os.ErrClosed
	}
	for d.At != "" && folder != d.At && !strings.HasPrefix(folder, d.At+"/") {
		d.leave()
	}
	for folder != d.At {
		name, _, _ := strings.Cut(strings.TrimPrefix(folder[len(d.At):], "/"), "/")
		below, err := step(d.open[len(d.open)-1], name)
		if err != nil {
			return Dir{}, err
		}
		d.open = append(d.open, below)
		d.At = strings.TrimPrefix(d.At+"/"+name, "/")
	}
	return d.open[len(d.open)-1], nil
}

// leave goes up by one folder.
func (d *Descent) leave() {
	last := len(d.open) - 1
	d.open[last].Close()
	d.open, d.At = d.open[:last], Parent(d.At)
}

// Parent is the folder that a path is in; "" for the root.
func Parent(path string) string {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 0)]
}
