package disk

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is an open folder. Every operation takes one name in it and follows no symbolic link, so that neither the
// content of a tree nor a folder swapped for a link can redirect it.
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

// Open opens the subfolder name.
func (d Dir) Open(name string) (Dir, error) {
	fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|dirFlags, 0)
	if err != nil {
		return Dir{}, d.failed("open", name, err)
	}
	return Dir{fd, d.path + "/" + name}, nil
}

// Make creates and opens the subfolder name, which must not exist.
func (d Dir) Make(name string) (Dir, error) {
	if err := d.MakeOnly(name); err != nil {
		return Dir{}, err
	}
	return d.Open(name)
}

// MakeOnly is Make without opening the subfolder.
func (d Dir) MakeOnly(name string) error {
	if err := unix.Mkdirat(d.fd, name, 0o755); err != nil {
		return d.failed("mkdir", name, err)
	}
	return nil
}

// Create creates a file, which must not exist.
func (d Dir) Create(name string, perm uint32) (*os.File, error) {
	fd, err := unix.Openat(d.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, perm)
	if err != nil {
		return nil, d.failed("create", name, err)
	}
	return os.NewFile(uintptr(fd), d.path+"/"+name), nil
}

// OpenOrMake opens the subfolder name and creates it if necessary.
func (d Dir) OpenOrMake(name string) (Dir, error) {
	below, err := d.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return d.Make(name)
	}
	return below, err
}

// Remove removes a file or an empty folder.
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

// Count returns the number of names in the folder. It reads from where the last call on this Dir stopped.
func (d Dir) Count() (names int, err error) {
	var buf [8 << 10]byte
	for {
		n, err := unix.ReadDirent(d.fd, buf[:])
		if err != nil {
			return 0, d.failed("read", "", err)
		}
		if n <= 0 {
			return names, nil
		}
		_, found, _ := unix.ParseDirent(buf[:n], -1, nil)
		names += found
	}
}

// Symlink creates a symbolic link, which must not exist.
func (d Dir) Symlink(target, name string) error {
	if err := unix.Symlinkat(target, d.fd, name); err != nil {
		return d.failed("symlink", name, err)
	}
	return nil
}

// Link creates a hard link in d to the file with the same name in from. The name must not exist in d.
func (d Dir) Link(from Dir, name string) error {
	if err := unix.Linkat(from.fd, name, d.fd, name, 0); err != nil {
		return d.failed("link", name, err)
	}
	return nil
}

// LinkFile creates a hard link in d to the file at path. The name must not exist.
func (d Dir) LinkFile(path, name string) error {
	if err := unix.Linkat(unix.AT_FDCWD, path, d.fd, name, 0); err != nil {
		return d.failed("link", name, err)
	}
	return nil
}

// Stat describes an entry. It does not follow symbolic links.
func (d Dir) Stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return st, d.failed("stat", name, err)
	}
	return st, nil
}

// OpenFile opens a file for reading. It neither follows a symbolic link nor waits for a writer of a pipe.
func (d Dir) OpenFile(name string) (*os.File, error) {
	for {
		fd, err := unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, d.failed("open", name, err)
		}
		return os.NewFile(uintptr(fd), name), nil
	}
}

// Readlink returns the target of a symbolic link.
func (d Dir) Readlink(name string) (string, error) {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(d.fd, name, target)
	if err != nil {
		return "", d.failed("readlink", name, err)
	}
	return string(target[:n]), nil
}

// Walker walks through the folders of a tree. It keeps the current folder and its parents open, so that visiting
// a tree in the order of its paths opens each folder once. A zero Walker fails with os.ErrClosed.
type Walker struct {
	Current string // folder, relative to the root
	open    []Dir  // from the root to the current folder
}

// NewWalker returns a Walker at the root of the tree at path.
func NewWalker(path string) (*Walker, error) {
	root, err := openDir(path)
	if err != nil {
		return nil, err
	}
	return &Walker{open: []Dir{root}}, nil
}

// Close closes all open folders.
func (d *Walker) Close() {
	for _, open := range d.open {
		open.Close()
	}
	d.open = nil
}

// Enter moves to a folder. It opens each folder below the common parent with step, for example [Dir.Open] or
// [Dir.Make]. The walker closes the returned folder.
func (d *Walker) Enter(folder string, step func(parent Dir, name string) (Dir, error)) (Dir, error) {
	if len(d.open) == 0 {
		return Dir{}, os.ErrClosed
	}
	for d.Current != "" && folder != d.Current && !strings.HasPrefix(folder, d.Current+"/") {
		last := len(d.open) - 1
		d.open[last].Close()
		d.open, d.Current = d.open[:last], Parent(d.Current)
	}
	for folder != d.Current {
		name, _, _ := strings.Cut(strings.TrimPrefix(folder[len(d.Current):], "/"), "/")
		below, err := step(d.open[len(d.open)-1], name)
		if err != nil {
			return Dir{}, err
		}
		d.open = append(d.open, below)
		d.Current = strings.TrimPrefix(d.Current+"/"+name, "/")
	}
	return d.open[len(d.open)-1], nil
}

// Parent returns the folder of a path; "" for the root.
func Parent(path string) string {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 0)]
}
