package tree

import (
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// treeFS is a tree without its .git. fsys is the result of [os.Root.FS].
type treeFS struct{ fsys fs.FS }

// hidden reports whether a name is .git or below it, ignoring case. No published commit has such an entry.
func hidden(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return strings.EqualFold(first, ".git")
}

// check refuses hidden and invalid names.
func check(op, name string) error {
	switch {
	case !fs.ValidPath(name):
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	case hidden(name):
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	return nil
}

func (f treeFS) Open(name string) (fs.File, error) {
	if err := check("open", name); err != nil {
		return nil, err
	}
	file, err := f.fsys.Open(name)
	if dir, ok := file.(fs.ReadDirFile); ok && err == nil && name == "." {
		return topDir{dir}, nil
	}
	return file, err
}

func (f treeFS) ReadFile(name string) ([]byte, error) {
	if err := check("open", name); err != nil {
		return nil, err
	}
	return fs.ReadFile(f.fsys, name)
}

func (f treeFS) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := check("open", name); err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(f.fsys, name)
	if name == "." {
		entries = visible(entries)
	}
	return entries, err
}

func (f treeFS) Stat(name string) (fs.FileInfo, error) {
	if err := check("stat", name); err != nil {
		return nil, err
	}
	return fs.Stat(f.fsys, name)
}

func (f treeFS) Lstat(name string) (fs.FileInfo, error) {
	if err := check("lstat", name); err != nil {
		return nil, err
	}
	return fs.Lstat(f.fsys, name)
}

func (f treeFS) ReadLink(name string) (string, error) {
	if err := check("readlink", name); err != nil {
		return "", err
	}
	return fs.ReadLink(f.fsys, name)
}

func visible(entries []fs.DirEntry) []fs.DirEntry {
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return hidden(e.Name()) })
}

type topDir struct{ fs.ReadDirFile }

func (d topDir) ReadDir(n int) ([]fs.DirEntry, error) {
	for {
		entries, err := d.ReadDirFile.ReadDir(n)
		full := len(entries)
		entries = visible(entries)
		if n <= 0 || len(entries) > 0 || full == 0 || errors.Is(err, io.EOF) {
			return entries, err
		}
	}
}
