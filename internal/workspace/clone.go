package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// ErrNoReflink means that the file system cannot share blocks between the tree and the workspace.
var ErrNoReflink = errors.New("the file system of the workspace cannot share blocks with the volume: put it on the volume's file system, which must be XFS or btrfs")

// cloner copies a tree file by file.
type cloner struct {
	need   bool        // fail with ErrNoReflink instead of copying
	copied atomic.Bool // some file did not share its blocks
}

// skipped are files in the .git of a tree that have no meaning in a copy of it.
var skipped = map[string]bool{"lockstep-pin": true, "lockstep-index": true, "lockstep-submodules-index": true, "index": true}

// clone copies the tree to dst, which must be empty except for the workspace's own files in .git, and returns the kind of the
// copy. Modification times are kept, so that the index of the tree is valid in the copy. The index itself is not copied.
func (c *cloner) clone(ctx context.Context, tree, dst string) (Kind, error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2*runtime.GOMAXPROCS(0) + 1)
	g.Go(func() error { return c.folder(ctx, g, tree, dst, "") })
	if err := g.Wait(); err != nil {
		return "", err
	}
	if c.copied.Load() {
		return KindCopy, nil
	}
	return KindReflink, nil
}

// folder copies the files in a folder, and its subfolders in other goroutines if there is capacity.
func (c *cloner) folder(ctx context.Context, g *errgroup.Group, tree, dst, path string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(tree, path))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		below := filepath.Join(path, entry.Name())
		from, to := filepath.Join(tree, below), filepath.Join(dst, below)
		if path == ".git" && skipped[entry.Name()] {
			continue
		}
		switch entry.Type() {
		case os.ModeDir:
			err = os.Mkdir(to, 0o755)
			if below == ".git" && errors.Is(err, os.ErrExist) {
				err = nil
			}
			if err != nil {
				break
			}
			sub := func() error { return c.folder(ctx, g, tree, dst, below) }
			if !g.TryGo(sub) {
				err = sub()
			}
		case os.ModeSymlink:
			err = copyLink(from, to)
		case 0:
			err = c.file(from, to)
		default:
			err = fmt.Errorf("%s is neither a file, a folder nor a link", from)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func copyLink(from, to string) error {
	target, err := os.Readlink(from)
	if err == nil {
		err = os.Symlink(target, to)
	}
	if err != nil {
		return err
	}
	return copyTimes(from, to)
}

func copyTimes(from, to string) error {
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return &os.PathError{Op: "stat", Path: from, Err: err}
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, st.Mtim}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, to, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "set the time of", Path: to, Err: err}
	}
	return nil
}

func (c *cloner) file(from, to string) error {
	src, err := os.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil {
		return err
	}
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, info.Mode().Perm()|0o200)
	if err != nil {
		return err
	}
	err = errors.Join(c.content(dst, src, info.Size()), dst.Close())
	if err != nil {
		return err
	}
	return copyTimes(from, to)
}

// content lets dst share the blocks of src or, if that is impossible, copies them.
func (c *cloner) content(dst, src *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	if !c.copied.Load() {
		err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
		switch {
		case err == nil:
			return nil
		case !cannotClone(err):
			return &os.PathError{Op: "clone", Path: src.Name(), Err: err}
		case c.need:
			return ErrNoReflink
		}
		c.copied.Store(true)
	}
	_, err := io.Copy(dst, src)
	return err
}

// cannotClone reports whether files of this file system cannot be cloned, or not to this place.
func cannotClone(err error) bool {
	for _, known := range []error{unix.EOPNOTSUPP, unix.ENOTTY, unix.EXDEV, unix.EINVAL, unix.ENOSYS, unix.EPERM} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// removeAll is os.RemoveAll, also for folders without write permission, such as Go's module cache has.
func removeAll(path string) error {
	if err := os.RemoveAll(path); err == nil {
		return nil
	}
	_ = unix.Fchmodat(unix.AT_FDCWD, path, 0o700, unix.AT_SYMLINK_NOFOLLOW)
	if root, err := os.OpenRoot(path); err == nil { // follows no link out of the folder
		makeWritable(root, ".")
		_ = root.Close()
	}
	return os.RemoveAll(path)
}

// makeWritable gives this user all permissions for a folder and those in it, as far as possible.
func makeWritable(root *os.Root, path string) {
	_ = root.Chmod(path, 0o700)
	dir, err := root.Open(path)
	if err != nil {
		return
	}
	entries, _ := dir.ReadDir(-1)
	_ = dir.Close()
	for _, entry := range entries {
		if entry.IsDir() {
			makeWritable(root, filepath.Join(path, entry.Name()))
		}
	}
}

// isWithin reports whether a path is a folder or below it. Both are absolute; links in them are followed as far as they exist.
func isWithin(path, folder string) bool {
	path, folder = resolved(path), resolved(folder)
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

func resolved(path string) string {
	rest := ""
	for dir := path; ; dir = filepath.Dir(dir) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, rest)
		}
		if dir == filepath.Dir(dir) {
			return path
		}
		rest = filepath.Join(filepath.Base(dir), rest)
	}
}
