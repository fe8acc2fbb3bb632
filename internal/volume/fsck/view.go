package fsck

import (
	"context"
	"path/filepath"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/git/checkout"
	"lockstep/internal/git/lfs"
	"lockstep/internal/git/object"
)

// CheckViews checks trees of views: that their files are those of their manifests, and no others. objects has the pointers of files in
// LFS. An error means that the check could not be completed.
func (c *Checker) CheckViews(trees []string, objects *object.Store) error {
	for _, tree := range trees {
		before := c.problems()
		if err := c.checkView(tree, objects); err != nil {
			return err
		}
		c.report.Trees++
		if c.problems() > before {
			c.NoteDamagedTree(tree)
		}
	}
	return nil
}

func (c *Checker) checkView(path string, objects *object.Store) error {
	g := checkout.GitDirOf(path)
	entries, err := readIndex(g.Manifest(), object.ParseID(g.BuiltFrom()).Format())
	if err != nil {
		c.Found(g.Manifest(), "cannot be read: %v", err)
		return nil
	}
	wanted, pointers := map[string]object.TreeEntry{}, map[string]lfs.Pointer{}
	for _, entry := range entries {
		wanted[entry.Name] = entry
		if g.Large() == "" || entry.Mode == filemode.Submodule || c.hasBlob(path, entry) {
			continue
		}
		if pointer, ok, err := lfs.ReadPointer(objects, entry.Hash); err == nil && ok {
			pointers[entry.Name] = pointer
		}
	}
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	if err := c.checkFiles(path, wanted, pointers); err != nil {
		return err
	}
	c.report.Files += int64(len(wanted))
	return c.checkExtras(path, wanted)
}

// hasBlob reports whether a file has the content of its blob.
func (c *Checker) hasBlob(tree string, entry object.TreeEntry) bool {
	return c.checkFile(c.ctx, filepath.Join(tree, filepath.FromSlash(entry.Name)), entry, lfs.Pointer{Size: -1}) == nil
}
