package checkout

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/git/object"
)

// writer writes the entries of a tree.
type writer struct {
	objects *object.Store
	format  object.Format // of the commit
	links   LinkPolicy
	leaving map[string]bool // links that lead out of the tree, by path; unused with LinksKeep
	large   Large           // optional
	filled  map[string]bool // paths of the submodules that have files
	modes   fileModes
}

// fork returns the writer for another goroutine, which closes its objects.
func (w writer) fork() writer {
	w.objects = w.objects.Fork()
	return w
}

// LinkPolicy is the policy for symbolic links that lead out of the tree or into its .git. Lockstep follows none of
// them, and results mark them; readers of the tree may follow them.
type LinkPolicy string

// The link policies.
const (
	LinksKeep   LinkPolicy = "keep"   // create them, as Git does; the default
	LinksSkip   LinkPolicy = "skip"   // omit them; Git reports them as deleted
	LinksRefuse LinkPolicy = "refuse" // refuse the tree
)

// write creates a file, link or submodule. A submodule becomes an empty folder, as in Git without
// --recurse-submodules, unless its files are entries too. For a skipped link it returns a zero tracked. size
// is that of the file.
func (w writer) write(ctx context.Context, folder disk.Dir, e entry, name string) (t tracked, size int64, err error) {
	skipped, linked := false, false
	switch e.mode {
	case filemode.Submodule:
		create := disk.Dir.Make
		if w.filled[e.path] { // its first file may have made it
			create = disk.Dir.OpenOrMake
		}
		sub, err := create(folder, name)
		if err != nil {
			return tracked{}, 0, buildError(err)
		}
		sub.Close()
		return describe(e, unix.Stat_t{}, w.format), 0, nil
	case filemode.Symlink:
		skipped, err = w.writeLink(folder, e, name)
	default:
		linked, err = w.writeContent(ctx, folder, e, name)
	}
	if err != nil {
		return tracked{}, 0, fmt.Errorf("check out %q: %w", e.path, err)
	}
	if skipped {
		return tracked{}, 0, nil
	}
	st, err := folder.Stat(name)
	if err != nil {
		return tracked{}, 0, buildError(err)
	}
	t = describe(e, st, w.format)
	t.linked = linked
	return t, st.Size, nil
}

func (w writer) writeLink(folder disk.Dir, e entry, name string) (skipped bool, err error) {
	target, err := w.objects.ReadLink(e.hash)
	if err != nil {
		return false, err
	}
	if w.links != LinksKeep && w.leaving[e.path] {
		if w.links == LinksRefuse {
			return false, object.Hostilef("it is a symbolic link that leaves the tree; set outside-links to keep or " +
				"skip to allow it")
		}
		return true, nil
	}
	return false, buildError(folder.Symlink(target, name))
}

// writeContent writes a file, or links it from the store of large files, and reports which.
func (w writer) writeContent(ctx context.Context, folder disk.Dir, e entry, name string) (linked bool, err error) {
	done, linked, err := w.writeLarge(ctx, folder, e, name)
	if err != nil || done {
		return linked, err
	}
	return linked, w.writeFile(ctx, folder, e, name)
}

func (w writer) writeFile(ctx context.Context, folder disk.Dir, e entry, name string) error {
	file, err := w.create(folder, e, name)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := w.objects.CopyBlob(object.CancelWriter{Ctx: ctx, Writer: file}, e.hash); err != nil {
		return err
	}
	return buildError(file.Close())
}

func (w writer) create(folder disk.Dir, e entry, name string) (*os.File, error) {
	perm := uint32(permRegular)
	if e.mode == filemode.Executable {
		perm = permExecutable
	}
	file, err := folder.Create(name, perm)
	return file, buildError(err)
}

// fileModes are the types and permissions that new files get in a folder. They follow from the umask and from
// default ACLs.
type fileModes struct{ regular, executable uint32 }

// probeModes creates and removes files in dst, which has no .git.
func probeModes(dst string) (modes fileModes, err error) {
	path := filepath.Join(dst, ".git") // no file of a tree has this name
	for mode, perm := range map[*uint32]os.FileMode{&modes.regular: permRegular, &modes.executable: permExecutable} {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, perm)
		if err != nil {
			return fileModes{}, err
		}
		var st unix.Stat_t
		err = unix.Fstat(int(file.Fd()), &st)
		_ = file.Close()
		if removeErr := os.Remove(path); err == nil {
			err = removeErr
		}
		if err != nil {
			return fileModes{}, err
		}
		*mode = st.Mode
	}
	return modes, nil
}

// The permissions of files, before the umask.
const (
	permRegular    = 0o644
	permExecutable = 0o755
)

// fit reports whether a file on disk has the type and permissions of a new one.
func (m fileModes) fit(mode filemode.FileMode, onDisk uint32) bool {
	switch mode {
	case filemode.Symlink:
		return onDisk&unix.S_IFMT == unix.S_IFLNK
	case filemode.Executable:
		return onDisk == m.executable
	}
	return onDisk == m.regular
}

// writeFiles makes dir a folder with exactly these folders and files, by slash-separated relative path,
// parents first. The names in others it leaves as they are. It keeps and overwrites files that are there, and
// that no other folder shares: creating a file takes a file system much longer. It returns the files that are
// new or have another content, and the folders that are new or have new or removed names.
func writeFiles(
	dir string, folders []string, files map[string]string, others []string,
) (written, changed []string, err error) {
	names := map[string]bool{} // folders with new or removed names
	if err := removeOthers(dir, folders, files, others, names); err != nil {
		return nil, nil, err
	}
	for _, folder := range folders {
		switch err := os.Mkdir(filepath.Join(dir, filepath.FromSlash(folder)), 0o755); {
		case err == nil:
			names[folder], names[path.Dir(folder)] = true, true
		case !errors.Is(err, os.ErrExist):
			return nil, nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := filepath.Join(dir, filepath.FromSlash(name))
		was, err := os.ReadFile(file)
		if err == nil && string(was) == files[name] {
			continue
		}
		if errors.Is(err, os.ErrNotExist) {
			names[path.Dir(name)] = true
		}
		if err := overwrite(file, []byte(files[name])); err != nil {
			return nil, nil, err
		}
		written = append(written, name)
	}
	return written, slices.Sorted(maps.Keys(names)), nil
}

// removeOthers removes from dir what has other names or types, or is shared. It notes the folders in names.
func removeOthers(dir string, folders []string, files map[string]string, others []string, names map[string]bool) error {
	return filepath.WalkDir(dir, func(at string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, os.ErrNotExist) && at == dir:
			return nil
		case err != nil:
			return err
		}
		rel, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		_, isFile := files[name]
		switch {
		case entry.IsDir() && slices.Contains(folders, name), slices.Contains(others, name):
			return nil
		case isFile && entry.Type().IsRegular():
			var st unix.Stat_t
			if err := unix.Lstat(at, &st); err != nil {
				return &os.PathError{Op: "stat", Path: at, Err: err}
			}
			if st.Nlink == 1 {
				return nil
			}
		}
		names[path.Dir(name)] = true
		if err := os.RemoveAll(at); err != nil {
			return err
		}
		if entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
}

// overwrite writes a file without emptying it first, after which ext4 would begin to write it to disk.
func overwrite(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, permRegular)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Write(content); err != nil {
		return err
	}
	if err := file.Truncate(int64(len(content))); err != nil {
		return err
	}
	return file.Close()
}

// isPair reports whether two paths are the only names of one regular file.
func isPair(a, b string) bool {
	var first, second unix.Stat_t
	return unix.Lstat(a, &first) == nil && unix.Lstat(b, &second) == nil && first.Mode&unix.S_IFMT == unix.S_IFREG &&
		first.Nlink == 2 &&
		disk.Inode{Dev: first.Dev, Ino: first.Ino} == disk.Inode{Dev: second.Dev, Ino: second.Ino}
}
