package fsck

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
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
	g := checkout.GitDirOf(path)
	if head, err := g.Head(); err != nil || head.Commit != commit || head.Ref != "" && head.Ref != ref {
		c.Found(path, "its HEAD is not %s at %.12s", ref, commit)
	}
	parts, err := c.checkParts(path, o)
	if err != nil {
		return err
	}
	wanted, err := o.filesOf(c.ctx, object.ParseID(commit), parts, g.Links())
	switch {
	case c.ctx.Err() != nil:
		return context.Cause(c.ctx)
	case err != nil:
		c.Found(path, "cannot read its commit from the store: %v", err)
		return nil
	}
	c.checkManifest(g, wanted)
	return c.checkFiles(path, wanted, o.Store)
}

// checkSelection compares the tree of a selection with its manifest.
func (c *Checker) checkSelection(path string, objects *object.Store) error {
	g, wanted := checkout.GitDirOf(path), map[string]object.TreeEntry{}
	err := g.List(true, func(f checkout.TreeFile) error {
		wanted[f.Path] = object.TreeEntry{Mode: filemode.FileMode(f.Mode), Hash: f.Blob}
		return nil
	})
	if err != nil {
		c.Found(g.Manifest(), "cannot be read: %v", err)
		return nil
	}
	return c.checkFiles(path, wanted, objects)
}

// checkParts returns the submodules of a tree, whose stores it checks. Then o reads these, too. It reports
// stores that are missing.
func (c *Checker) checkParts(tree string, o *verified) (checkout.Parts, error) {
	parts, err := checkout.GitDirOf(tree).Parts()
	if err != nil {
		c.Found(tree, "its .git does not say which submodules it has: %v", err)
		return checkout.Parts{}, nil
	}
	for _, part := range parts.Filled() {
		dir := c.PartStore(part)
		if _, err := os.Lstat(filepath.Join(dir, "objects")); err != nil {
			c.Found(tree, "the store of its submodule %q is missing", part.Path)
			continue
		}
		if _, checked := c.parts[dir]; !checked {
			objects, sound, err := c.checkStore(dir)
			if err != nil {
				return checkout.Parts{}, err
			}
			objects.Close()
			c.parts[dir] = sound
		}
		if !c.parts[dir] {
			c.Found(tree, "the store of its submodule %q is damaged", part.Path)
		}
		o.Add(dir)
	}
	return parts, nil
}

// filesOf returns the files that a commit and its submodules have in a tree with this policy for links, by path.
func (o *verified) filesOf(
	ctx context.Context, commit object.ID, parts checkout.Parts, policy checkout.LinkPolicy,
) (files map[string]object.TreeEntry, err error) {
	defer object.RecoverCorrupt(&err)
	all := func(object.ID) bool { return true }
	add := func(path string, entry object.TreeEntry) error {
		files[path] = entry
		return nil
	}
	files = map[string]object.TreeEntry{}
	whole, err := o.CommitHeader(commit)
	if err == nil {
		err = o.walk(ctx, whole.Tree, "", all, add)
	}
	for _, part := range parts.Filled() {
		var header object.CommitHeader
		if err == nil {
			header, err = o.CommitHeader(part.Commit)
		}
		if err == nil {
			err = o.walk(ctx, header.Tree, part.Path+"/", all, add)
		}
	}
	if err != nil || policy != checkout.LinksSkip {
		return files, err
	}
	links := parts.Links(o.Store, whole.Tree)
	for _, name := range slices.Sorted(maps.Keys(files)) { // as in a build
		if files[name].Mode != filemode.Symlink {
			continue
		}
		leaves, err := links.Leave(name)
		if err != nil {
			return nil, err
		}
		if leaves {
			delete(files, name)
		}
	}
	return files, nil
}

// checkManifest compares a tree's manifest with its commit, and verifies the checksum of its index, which Git
// may have written.
func (c *Checker) checkManifest(g checkout.GitDir, wanted map[string]object.TreeEntry) {
	missing := len(wanted)
	err := g.List(true, func(f checkout.TreeFile) error {
		if want, ok := wanted[f.Path]; !ok || want.Hash != f.Blob || want.Mode != filemode.FileMode(f.Mode) {
			c.Found(g.Manifest(), "%q does not match the commit", f.Path)
			return nil
		}
		missing--
		return nil
	})
	switch {
	case err != nil:
		c.Found(g.Manifest(), "cannot be read: %v", err)
	case missing > 0:
		c.Found(g.Manifest(), "%d of %d files are missing in it", missing, len(wanted))
	}
	format := object.ParseID(g.BuiltFrom()).Format()
	index, err := os.ReadFile(g.Index())
	if end := len(index) - format.Size(); err == nil && end >= 0 {
		sum := format.NewSum()
		sum.Write(index[:end])
		if bytes.Equal(sum.Sum(nil), index[end:]) {
			return
		}
	}
	c.Found(g.Index(), "cannot be read, or does not match its checksum")
}

// checkFiles checks that a tree has these files and no others. Files of a tree with LFS may have the content
// of the pointers that are their blobs, which objects has.
func (c *Checker) checkFiles(tree string, wanted map[string]object.TreeEntry, objects *object.Store) error {
	hasLarge := checkout.GitDirOf(tree).Large() != ""
	g, ctx := errgroup.WithContext(c.ctx)
	g.SetLimit(readers())
	for name, want := range wanted {
		pointer, isPointer := lfs.Pointer{}, false
		if hasLarge && want.Mode.IsFile() {
			pointer, isPointer, _ = lfs.ReadPointer(objects, want.Hash) // what cannot be read is no pointer
		}
		g.Go(func() error {
			file := filepath.Join(tree, filepath.FromSlash(name))
			if err := c.checkFile(ctx, file, want, pointer, isPointer); err != nil && ctx.Err() == nil {
				c.Found(file, "%v", err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	c.report.Files += int64(len(wanted))
	return c.checkExtras(tree, wanted)
}

// checkFile compares the type and the content of a file with its entry, whose blob may be a pointer.
func (c *Checker) checkFile(
	ctx context.Context, path string, want object.TreeEntry, pointer lfs.Pointer, isPointer bool,
) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return errors.New("missing")
	case err != nil:
		return err
	case want.Mode == filemode.Submodule && info.IsDir():
		return nil
	}
	st, err := disk.Stat(info)
	if err != nil {
		return err
	}
	if st.Mode&(unix.S_IFMT|0o100) != checkout.FileType(want.Mode) || want.Mode == filemode.Submodule {
		return fmt.Errorf("mode is %v, want that of %s", info.Mode(), want.Mode)
	}
	key := disk.Inode{Dev: st.Dev, Ino: st.Ino}
	c.mu.Lock()
	got, known := c.sums[key]
	c.mu.Unlock()
	if !known {
		if got, err = readSums(ctx, path, info, want.Hash.Format()); err != nil {
			return err
		}
		c.mu.Lock()
		c.report.Bytes += got.size
		if st.Nlink > 1 { // trees share it
			c.sums[key] = got
		}
		c.mu.Unlock()
	}
	// git-lfs ignores the OID of an empty object
	isTarget := isPointer && got.size == pointer.Size && (got.content == pointer.OID || got.size == 0)
	if got.blob != want.Hash && !isTarget {
		return errors.New("content does not match the commit")
	}
	return nil
}

// sums are the hashes of a file, as a blob and as an LFS object.
type sums struct {
	blob    object.ID
	content lfs.OID
	size    int64
}

func readSums(ctx context.Context, path string, info fs.FileInfo, format object.Format) (sums, error) {
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(path)
		return sums{blob: format.Hash(plumbing.BlobObject, []byte(target))}, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return sums{}, err
	}
	defer file.Close()
	blob, content := format.NewHasher(plumbing.BlobObject, info.Size()), sha256.New()
	n, err := io.Copy(object.CancelWriter{Ctx: ctx, Writer: io.MultiWriter(blob, content)}, file)
	return sums{blob.ID(), lfs.OID(content.Sum(nil)), n}, err
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
