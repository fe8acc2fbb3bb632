package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"lockstep/internal/git/checkout"
	"lockstep/internal/volume"
	"lockstep/tree"
)

// Create makes a copy of a tree that stays. Its .git has all objects of the tree's store, so it needs the
// volume no more.
type Create struct {
	Root string // of the volume
	Tree *tree.Tree
	Dir  string // to create; may be an empty folder
}

// Run makes the copy. After a failure nothing is left of it.
func (c Create) Run(ctx context.Context) error {
	if err := checkOutside(c.Dir, c.Root); err != nil {
		return err
	}
	objects, err := volume.PinObjects(ctx, c.Tree.Dir())
	if err != nil {
		return err
	}
	defer objects.Close()
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return err
	}
	lock, err := lockFolder(c.Dir, unix.LOCK_EX)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%s is being filled by another workspace create: choose another folder", c.Dir)
	}
	if err == nil { // file systems without such locks for folders, such as NFS, have other errors
		defer lock.Close()
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty: choose a new or empty folder", c.Dir)
	}
	if err := c.fill(ctx); err != nil {
		return errors.Join(err, empty(c.Dir))
	}
	return nil
}

func (c Create) fill(ctx context.Context) error {
	files, err := gitFiles(c.Tree)
	if err != nil {
		return err
	}
	delete(files, alternates)
	store, err := checkout.GitDirOf(c.Tree.Dir()).Store()
	if err != nil {
		return err
	}
	if err := copyFolder(ctx, filepath.Join(store, "objects"), filepath.Join(c.Dir, ".git", "objects"), nil); err != nil {
		return err
	}
	return copyTree(ctx, c.Tree.Dir(), c.Dir, files)
}

// empty removes everything in a folder and, if possible, the folder.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		err = errors.Join(err, removeAll(filepath.Join(dir, entry.Name())))
	}
	_ = os.Remove(dir)
	return err
}

// checkOutside refuses a folder that is on the volume.
func checkOutside(dir, root string) error {
	dir, err := resolve(dir)
	if err != nil {
		return err
	}
	root, err = resolve(root)
	if err != nil {
		return err
	}
	if dir == root || strings.HasPrefix(dir, strings.TrimSuffix(root, "/")+"/") {
		return fmt.Errorf("%s is on the volume %s: choose a folder elsewhere", dir, root)
	}
	return nil
}

// resolve returns the absolute path of a folder, without links as far as it exists.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	rest := ""
	for dir := path; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, rest), nil
		}
		rest = filepath.Join(filepath.Base(dir), rest)
	}
	return path, nil
}
