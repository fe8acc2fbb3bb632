package fsck

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
	"lockstep/internal/git/object"
)

// pointers returns the pointers of the files that have the content of an LFS object in a tree with submodules.
func (c *Checker) pointers(path, commit string, parts checkout.Parts, o *verified, wanted map[string]object.TreeEntry) (pointers map[string]lfs.Pointer, err error) {
	selection, err := lfs.ParseSelection(checkout.GitDirOf(path).Large())
	if err != nil {
		c.Found(path, "its .git does not say which files are in LFS: %v", err)
		return nil, nil
	}
	if len(selection) == 0 {
		return nil, nil
	}
	defer object.RecoverCorrupt(&err)
	decoded, err := o.commit(object.ParseID(commit))
	if err != nil {
		return nil, err
	}
	trees := map[string]object.ID{"": decoded.TreeHash}
	for _, part := range parts.Filled() {
		decoded, err := o.commit(part.Commit)
		if err != nil {
			return nil, err
		}
		trees[part.Path] = decoded.TreeHash
	}
	files := lfs.NewForest(o.Store, trees, selection)
	pointers = map[string]lfs.Pointer{}
	for _, name := range slices.Sorted(maps.Keys(wanted)) { // in order, each folder is read once
		if c.ctx.Err() != nil {
			return nil, context.Cause(c.ctx)
		}
		entry := wanted[name]
		if !entry.Mode.IsFile() || checkout.FileType(entry.Mode)&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		p, ok, err := files.Pointer(name, entry.Hash)
		if err != nil {
			return nil, err
		}
		if ok {
			pointers[name] = p
		}
	}
	return pointers, nil
}

// checkLarge compares a file with its LFS object. A file that trees share is read once.
func (c *Checker) checkLarge(ctx context.Context, path string, info fs.FileInfo, key disk.Inode, shared bool, want lfs.Pointer) error {
	if want.Size == 0 { // git-lfs ignores the OID of an empty object
		if info.Size() > 0 {
			return errors.New("content does not match its LFS pointer")
		}
		return nil
	}
	c.mu.Lock()
	sum, known := c.large[key]
	c.mu.Unlock()
	if !known || !shared {
		file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		hasher := sha256.New()
		if _, err := io.Copy(object.CancelWriter{Ctx: ctx, Writer: hasher}, file); err != nil {
			return err
		}
		sum = lfs.OID(hasher.Sum(nil))
		c.mu.Lock()
		c.report.Bytes += info.Size()
		c.large[key] = sum
		c.mu.Unlock()
	}
	if sum != want.OID || info.Size() != want.Size {
		return errors.New("content does not match its LFS pointer")
	}
	return nil
}
