package fsck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
	"lockstep/internal/git/object"
)

// checkTree compares a tree with its commit: its .git, its index and every file.
func (c *Checker) checkTree(path string, o *verified) error {
	ref, commit, ok := checkout.RefAndCommit(path)
	if !ok {
		c.Found(path, "its .git does not name its ref and commit")
		return nil
	}
	if head, err := checkout.GitDirOf(path).Head(); err != nil || head.Commit != commit || head.Ref != "" && head.Ref != ref {
		c.Found(path, "its HEAD is not %s at %.12s", ref, commit)
	}
	parts, err := c.partsOf(path, o)
	if err != nil {
		return err
	}
	own, inParts, err := c.wanted(path, commit, parts, o)
	if err != nil || own == nil {
		return err
	}
	format := object.ParseID(commit).Format()
	c.checkIndex(checkout.GitDirOf(path).Index(), format, own)
	if _, err := os.Lstat(checkout.GitDirOf(path).Manifest()); err == nil { // trees of older versions have none
		c.checkIndex(checkout.GitDirOf(path).Manifest(), format, own)
	}
	if len(inParts) > 0 {
		c.checkIndex(checkout.GitDirOf(path).PartsManifest(), format, inParts)
	}
	wanted := own
	maps.Copy(wanted, inParts)
	pointers, err := c.pointers(path, commit, parts, o, wanted)
	switch {
	case c.ctx.Err() != nil:
		return context.Cause(c.ctx)
	case err != nil:
		c.Found(path, "cannot read which files are in LFS: %v", err)
		return nil
	}
	if err := c.checkFiles(path, wanted, pointers); err != nil {
		return err
	}
	c.report.Files += int64(len(wanted))
	return c.checkExtras(path, wanted)
}

// wanted returns the files that the commit has in the tree, and those of its submodules, or nil if one cannot be read.
func (c *Checker) wanted(path, commit string, parts checkout.Parts, o *verified) (own, inParts map[string]object.TreeEntry, err error) {
	own, inParts = map[string]object.TreeEntry{}, map[string]object.TreeEntry{}
	add := func(wanted map[string]object.TreeEntry, commit object.ID, prefix string) error {
		return o.walkCommit(c.ctx, commit, func(name string, entry object.TreeEntry) error {
			wanted[prefix+name] = entry
			return nil
		})
	}
	err = add(own, object.ParseID(commit), "")
	for _, part := range parts.List {
		if err == nil && part.IsFilled() {
			err = add(inParts, part.Commit, part.Path+"/")
		}
	}
	if err == nil && checkout.GitDirOf(path).Links() == checkout.LinksSkip {
		err = o.dropLeaving(own, inParts, object.ParseID(commit), parts, checkout.GitDirOf(path).ResolvesLinks())
	}
	switch {
	case c.ctx.Err() != nil:
		return nil, nil, context.Cause(c.ctx)
	case err != nil:
		c.Found(path, "cannot read its commit from the store: %v", err)
		return nil, nil, nil
	}
	return own, inParts, nil
}

// checkIndex compares a tree's index with its commit.
func (c *Checker) checkIndex(file string, format object.Format, wanted map[string]object.TreeEntry) {
	entries, err := readIndex(file, format)
	if err != nil {
		c.Found(file, "cannot be read: %v", err)
		return
	}
	matching := 0
	for _, entry := range entries {
		if want, ok := wanted[entry.Name]; !ok || want.Hash != entry.Hash || want.Mode != entry.Mode {
			c.Found(file, "%q does not match the commit", entry.Name)
			continue
		}
		matching++
	}
	if matching < len(wanted) {
		c.Found(file, "%d of %d files are missing in it", len(wanted)-matching, len(wanted))
	}
}

// checkFiles compares a tree's files with the commit, and with the LFS objects that some are pointers to.
func (c *Checker) checkFiles(path string, wanted map[string]object.TreeEntry, pointers map[string]lfs.Pointer) error {
	g, ctx := errgroup.WithContext(c.ctx)
	g.SetLimit(verifyReaders())
	for name, want := range wanted {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			file := filepath.Join(path, filepath.FromSlash(name))
			pointer, isLarge := pointers[name]
			if !isLarge {
				pointer.Size = -1
			}
			if err := c.checkFile(ctx, file, want, pointer); err != nil && ctx.Err() == nil {
				c.Found(file, "%v", err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return context.Cause(c.ctx)
}

// checkFile compares a file with its entry, or with its LFS object unless the size of the pointer is negative.
func (c *Checker) checkFile(ctx context.Context, path string, want object.TreeEntry, pointer lfs.Pointer) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return errors.New("missing")
	case err != nil:
		return err
	}
	if want.Mode == filemode.Submodule {
		if !info.IsDir() {
			return errors.New("not the folder of a submodule")
		}
		return nil
	}
	st, err := disk.Stat(info)
	if err != nil {
		return err
	}
	if st.Mode&(unix.S_IFMT|0o100) != checkout.FileType(want.Mode) {
		return fmt.Errorf("mode is %v, want that of %s", info.Mode(), want.Mode)
	}
	if pointer.Size >= 0 {
		return c.checkLarge(ctx, path, info, disk.Inode{Dev: st.Dev, Ino: st.Ino}, st.Nlink > 1, pointer)
	}
	sum, err := c.hashOf(ctx, path, info, disk.Inode{Dev: st.Dev, Ino: st.Ino}, st.Nlink > 1, want.Hash.Format())
	if err != nil {
		return err
	}
	if sum != want.Hash {
		return errors.New("content does not match the commit")
	}
	return nil
}

// hashOf returns a file's blob hash. A file that trees share is read once.
func (c *Checker) hashOf(ctx context.Context, path string, info fs.FileInfo, key disk.Inode, shared bool, format object.Format) (object.ID, error) {
	if shared {
		c.mu.Lock()
		sum, ok := c.hashes[key]
		c.mu.Unlock()
		if ok {
			return sum, nil
		}
	}
	sum, err := hashFile(ctx, path, info, format)
	if err != nil {
		return sum, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Bytes += info.Size()
	if shared {
		c.hashes[key] = sum
	}
	return sum, nil
}

func hashFile(ctx context.Context, path string, info fs.FileInfo, format object.Format) (object.ID, error) {
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(path)
		return format.Hash(plumbing.BlobObject, []byte(target)), err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return object.ZeroID, err
	}
	defer file.Close()
	hasher := format.NewHasher(plumbing.BlobObject, info.Size())
	_, err = io.Copy(object.CancelWriter{Ctx: ctx, Writer: hasher}, file)
	return hasher.ID(), err
}

// checkExtras reports files that are not in the commit. Git ignores empty folders.
func (c *Checker) checkExtras(path string, wanted map[string]object.TreeEntry) error {
	return filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case c.ctx.Err() != nil:
			return context.Cause(c.ctx)
		case err != nil:
			c.Found(file, "%v", err)
			return nil
		case file == filepath.Join(path, ".git"):
			return filepath.SkipDir
		case entry.IsDir():
			return nil
		}
		name := filepath.ToSlash(strings.TrimPrefix(file, path+string(filepath.Separator)))
		if _, ok := wanted[name]; !ok {
			c.Found(file, "not in the commit")
		}
		return nil
	})
}
