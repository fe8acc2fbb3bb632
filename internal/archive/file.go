package archive

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

var (
	// ErrNoFile means that a path is neither a file nor a link.
	ErrNoFile = errors.New("no such file")

	// ErrFolder means that a path is a folder or a gitlink.
	ErrFolder = errors.New("is a folder")

	errFound = errors.New("found")
)

// File is an open file of a tree. The caller closes it.
type File struct {
	checkout.TreeFile
	io.ReadSeeker // the content; for a link, its target
	io.Closer
	ETag string // strong; the blob's ID, with a suffix if the tree has files of Git LFS
}

// Open opens a selected file or link. It returns ErrNoFile, ErrFolder or ErrAltered.
func (c *Contents) Open(ctx context.Context, name string) (*File, error) {
	found, err := c.find(ctx, name)
	if err != nil {
		return nil, err
	}
	at, err := disk.NewWalker(c.tree.Dir())
	if err != nil {
		return nil, fmt.Errorf("open the tree: %w", err)
	}
	defer at.Close()
	folder, err := at.Enter(disk.Parent(name), disk.Dir.Open)
	if err != nil {
		return nil, altered(name, err)
	}
	f := &File{TreeFile: found, ETag: `"` + found.Blob.String() + `"`}
	if large := c.git.Large(); large != "" { // the content depends on what is selected, too
		f.ETag = fmt.Sprintf(`"%s-%.4x"`, found.Blob, sha256.Sum256([]byte(large)))
	}
	if found.Mode == ModeLink {
		target, err := folder.Readlink(path.Base(name))
		if err != nil {
			return nil, altered(name, err)
		}
		f.ReadSeeker, f.Closer = strings.NewReader(target), io.NopCloser(nil)
		return f, nil
	}
	file, _, err := openBuilt(folder, found)
	if err != nil {
		return nil, err
	}
	f.ReadSeeker, f.Closer = file, file
	return f, nil
}

// find returns the entry of a selected file or link.
func (c *Contents) find(ctx context.Context, name string) (found checkout.TreeFile, err error) {
	below := false
	err = c.Each(ctx, func(f checkout.TreeFile) error {
		switch {
		case f.Path == name:
			found = f
			return errFound
		case strings.HasPrefix(f.Path, name+"/"):
			below = true
			return errFound
		case f.Path > name+"/":
			return errFound
		}
		return nil
	})
	switch {
	case err != nil && !errors.Is(err, errFound):
		return found, err
	case below, found.Mode == ModeGitlink:
		return found, ErrFolder
	case found.Path == "":
		return found, ErrNoFile
	}
	return found, nil
}

// openBuilt opens a file in its folder and returns its size. It returns ErrAltered if the file has not the
// size that it was built with.
func openBuilt(folder disk.Dir, f checkout.TreeFile) (*os.File, int64, error) {
	file, err := folder.OpenFile(path.Base(f.Path))
	if err != nil {
		return nil, 0, altered(f.Path, err)
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return nil, 0, err
	}
	if !info.Mode().IsRegular() || uint32(info.Size()) != f.Size {
		_ = file.Close()
		return nil, 0, altered(f.Path, nil)
	}
	return file, info.Size(), nil
}

// Entry is a file of a page of the list.
type Entry struct {
	checkout.TreeFile
	Bytes int64 // size on disk; of a link, that of its target; 0 for a gitlink
}

// Page returns up to limit entries after a path, "" for the first, and whether there are more.
func (c *Contents) Page(ctx context.Context, after string, limit int) (entries []Entry, more bool, err error) {
	at, err := disk.NewWalker(c.tree.Dir())
	if err != nil {
		return nil, false, fmt.Errorf("open the tree: %w", err)
	}
	defer at.Close()
	err = c.Each(ctx, func(f checkout.TreeFile) error {
		if after != "" && f.Path <= after {
			return nil
		}
		if len(entries) == limit {
			more = true
			return errFound
		}
		entry := Entry{TreeFile: f}
		if f.Mode != ModeGitlink {
			folder, err := at.Enter(disk.Parent(f.Path), disk.Dir.Open)
			if err != nil {
				return altered(f.Path, err)
			}
			st, err := folder.Stat(path.Base(f.Path))
			if err != nil {
				return altered(f.Path, err)
			}
			entry.Bytes = st.Size
		}
		entries = append(entries, entry)
		return nil
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	return entries, more, err
}
