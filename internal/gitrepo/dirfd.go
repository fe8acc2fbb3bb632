package gitrepo

import (
	"errors"
	"os"
	"strings"

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

// openOrMake opens a folder in d, made if it is not there.
func (d dir) openOrMake(name string) (dir, error) {
	below, err := d.open(name)
	if errors.Is(err, os.ErrNotExist) {
		return d.make(name)
	}
	return below, err
}

// remove removes a file, or an empty folder.
func (d dir) remove(name string, folder bool) error {
	flags := 0
	if folder {
		flags = unix.AT_REMOVEDIR
	}
	if err := unix.Unlinkat(d.fd, name, flags); err != nil {
		return d.failed("remove", name, err)
	}
	return nil
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

// descent walks over the folders of a tree and keeps those open that lead to where it is: whoever
// visits a tree in the order of its paths opens each folder once.
type descent struct {
	at   string // folder
	open []dir  // from the root to it
}

// descend begins at the root of a tree.
func descend(path string) (*descent, error) {
	root, err := openDir(path)
	if err != nil {
		return nil, err
	}
	return &descent{open: []dir{root}}, nil
}

func (d *descent) close() {
	for _, open := range d.open {
		open.close()
	}
	d.open = nil
}

// enter goes to a folder, down from where it parts from the last one by step: [dir.open], or [dir.make]
// if each folder is entered for the first time. The folder returned is closed by the descent.
func (d *descent) enter(folder string, step func(parent dir, name string) (dir, error)) (dir, error) {
	if len(d.open) == 0 {
		return dir{}, os.ErrClosed
	}
	for d.at != "" && folder != d.at && !strings.HasPrefix(folder, d.at+"/") {
		d.leave()
	}
	for folder != d.at {
		name, _, _ := strings.Cut(strings.TrimPrefix(folder[len(d.at):], "/"), "/")
		below, err := step(d.open[len(d.open)-1], name)
		if err != nil {
			return dir{}, err
		}
		d.open = append(d.open, below)
		d.at = strings.TrimPrefix(d.at+"/"+name, "/")
	}
	return d.open[len(d.open)-1], nil
}

// leave goes up by one folder.
func (d *descent) leave() {
	last := len(d.open) - 1
	d.open[last].close()
	d.open, d.at = d.open[:last], folderOf(d.at)
}

// folderOf is the folder that a path is in; "" for the root.
func folderOf(path string) string {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 0)]
}
