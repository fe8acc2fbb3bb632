package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// notCopied are files in a tree that have no meaning in a copy of it, or are written there anew.
var notCopied = map[string]bool{
	".git/lockstep-pin": true, ".git/lockstep-index": true, ".git/lockstep-submodules-index": true, ".git/index": true,
	".git/objects": true,
}

// copyTree copies a tree to an empty folder, and gives the copy a .git with these files.
func copyTree(ctx context.Context, tree, dst string, files map[string]string) error {
	if err := copyFolder(ctx, tree, dst, notCopied); err != nil {
		return err
	}
	return writeGit(tree, dst, files)
}

// copyFolder copies a folder without the paths in skip. Files and links keep their modification times, so
// that the index of a tree is valid in the copy.
func copyFolder(ctx context.Context, from, to string, skip map[string]bool) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * runtime.GOMAXPROCS(0))
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err = errors.Join(err, context.Cause(ctx)); err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		dst := filepath.Join(to, name)
		switch {
		case skip[name] && entry.IsDir():
			return filepath.SkipDir
		case skip[name]:
			return nil
		case entry.IsDir():
			return os.MkdirAll(dst, 0o755)
		case entry.Type() == fs.ModeSymlink:
			return copyLink(path, dst)
		case entry.Type() == 0:
			g.Go(func() error { return disk.Copy(path, dst) })
			return nil
		}
		return fmt.Errorf("%s is neither a file, a folder nor a link", path)
	})
	if failed := g.Wait(); failed != nil {
		return failed
	}
	return err
}

func copyLink(from, to string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if err := os.Symlink(target, to); err != nil {
		return err
	}
	return disk.SetTime(to, info.ModTime())
}

// copyIndex copies the index of a tree. Git trusts a file whose size and modification time, in seconds, are
// those in the index, unless the index is not newer than the file. That of a new tree is dated ahead: the
// copy has the current time, so that Git reads the files of this second again and does not miss an edit.
func copyIndex(tree, path string) error {
	if err := disk.Copy(checkout.GitDirOf(tree).Index(), path); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if now := time.Now().Truncate(time.Second); info.ModTime().After(now) {
		return disk.SetTime(path, now)
	}
	return nil
}

// removeAll is os.RemoveAll, also for folders without write permission, such as Go's module cache has.
func removeAll(path string) error {
	if err := os.RemoveAll(path); err == nil {
		return nil
	}
	if root, err := os.OpenRoot(path); err == nil { // follows no link out of the folder
		_ = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, _ error) error {
			if entry != nil && entry.IsDir() {
				_ = root.Chmod(name, 0o700)
			}
			return nil
		})
		_ = root.Close()
	}
	return os.RemoveAll(path)
}
