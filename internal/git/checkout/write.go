package checkout

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

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

// writeFiles creates the folder dir with these folders and files, by slash-separated relative path, parents first.
func writeFiles(dir string, folders []string, files map[string]string) error {
	for _, folder := range folders {
		if err := os.Mkdir(filepath.Join(dir, filepath.FromSlash(folder)), 0o755); err != nil {
			return err
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), []byte(content), permRegular); err != nil {
			return err
		}
	}
	return nil
}
