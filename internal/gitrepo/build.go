package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/index"
	"golang.org/x/sys/unix"
)

// builder checks a plan out into a folder that nobody else sees yet.
type builder struct {
	ctx     context.Context // of one build, which the builder does not outlive
	objects *objects
	last    *lastTree // to link unchanged files from; nil for none
	entries []*index.Entry
}

// lastTree is a published tree whose files may be shared, and its index: what it was built of.
type lastTree struct {
	path    string
	entries map[string]*index.Entry
}

// openLastTree reads the index of a published tree; nil when it cannot be used.
func openLastTree(path string) (last *lastTree) {
	defer func() {
		if recover() != nil {
			last = nil
		}
	}()
	file, err := os.Open(gitDirOf(path).index())
	if err != nil {
		return nil
	}
	defer file.Close()
	decoded := &index.Index{}
	if err := index.NewDecoder(file).Decode(decoded); err != nil {
		return nil
	}
	last = &lastTree{path: path, entries: make(map[string]*index.Entry, len(decoded.Entries))}
	for _, entry := range decoded.Entries {
		last.entries[entry.Name] = entry
	}
	return last
}

// build checks the plan out into dst, an empty folder, and returns the index entries that describe
// the files as they are on disk.
func (b *builder) build(p *plan, dst string) (entries []*index.Entry, err error) {
	defer recoverCorrupt(&err)
	to, err := openDir(dst)
	if err != nil {
		return nil, buildError(err)
	}
	defer to.close()
	var from *dir
	if b.last != nil {
		if d, err := openDir(b.last.path); err == nil {
			defer d.close()
			from = &d
		}
	}
	b.entries = make([]*index.Entry, 0, p.size)
	return b.entries, b.fill(to, from, p.root, "")
}

// buildError classifies a failure to make an entry. Only a file system that takes two names for one
// can say that an entry's name is taken.
func buildError(err error) error {
	if errors.Is(err, os.ErrExist) {
		return hostile("build the tree: two entries that this file system takes for one: %w", err)
	}
	return volumeError("build the tree", err)
}

// fill makes the entries of one folder. from is the same folder in the last tree, nil if it has none.
func (b *builder) fill(to dir, from *dir, nodes []node, prefix string) error {
	for _, n := range nodes {
		if b.ctx.Err() != nil {
			return fmt.Errorf("build the tree: %w", context.Cause(b.ctx))
		}
		var err error
		switch n.mode {
		case filemode.Dir:
			err = b.folder(to, from, n, prefix)
		case filemode.Submodule:
			err = b.submodule(to, n, prefix)
		default:
			err = b.file(to, from, n, prefix)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) folder(to dir, from *dir, n node, prefix string) error {
	sub, err := to.make(n.name)
	if err != nil {
		return buildError(err)
	}
	defer sub.close()
	var lastSub *dir
	if from != nil {
		if d, err := from.open(n.name); err == nil {
			defer d.close()
			lastSub = &d
		}
	}
	return b.fill(sub, lastSub, n.children, prefix+n.name+"/")
}

// submodule leaves an empty folder, as Git does without --recurse-submodules.
func (b *builder) submodule(to dir, n node, prefix string) error {
	sub, err := to.make(n.name)
	if err != nil {
		return buildError(err)
	}
	sub.close()
	b.entries = append(b.entries, &index.Entry{Name: prefix + n.name, Mode: n.mode, Hash: n.hash})
	return nil
}

// file links an unchanged file from the last tree, and writes any other anew: the trees that share
// a file's inode never see it change.
func (b *builder) file(to dir, from *dir, n node, prefix string) error {
	if from == nil || !b.unchanged(*from, n, prefix) || to.link(*from, n.name) != nil {
		if err := b.write(to, n); err != nil {
			return fmt.Errorf("check out %q: %w", prefix+n.name, err)
		}
	}
	st, err := to.stat(n.name)
	if err != nil {
		return buildError(err)
	}
	b.entries = append(b.entries, indexEntry(prefix+n.name, n, st))
	return nil
}

// unchanged reports whether the last tree has this very file, still as it was written.
func (b *builder) unchanged(from dir, n node, prefix string) bool {
	was, ok := b.last.entries[prefix+n.name]
	if !ok || was.Hash != n.hash || was.Mode != n.mode {
		return false
	}
	st, err := from.stat(n.name)
	if err != nil {
		return false
	}
	is := indexEntry(was.Name, n, st)
	return is.Size == was.Size && is.ModifiedAt.Equal(was.ModifiedAt) && is.Inode == was.Inode && fileType(n.mode) == st.Mode&(unix.S_IFMT|0o100)
}

// fileType returns the type and owner's execute bit that a file of this mode has on disk.
func fileType(mode filemode.FileMode) uint32 {
	switch mode {
	case filemode.Symlink:
		return unix.S_IFLNK | 0o100
	case filemode.Executable:
		return unix.S_IFREG | 0o100
	}
	return unix.S_IFREG
}

func (b *builder) write(to dir, n node) error {
	if n.mode == filemode.Symlink {
		target, err := b.objects.readLink(n.hash)
		if err != nil {
			return err
		}
		return buildError(to.symlink(target, n.name))
	}
	perm := uint32(0o644)
	if n.mode == filemode.Executable {
		perm = 0o755
	}
	file, err := to.create(n.name, perm)
	if err != nil {
		return buildError(err)
	}
	err = b.objects.copyBlob(&cancelled{b.ctx, file}, n.hash)
	if closeErr := file.Close(); err == nil {
		err = buildError(closeErr)
	}
	return err
}

// cancelled writes until its context is done: a large file takes long.
type cancelled struct {
	ctx context.Context // the builder's
	io.Writer
}

func (c *cancelled) Write(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.Writer.Write(p)
}

// indexEntry describes a file on disk as Git's index does.
func indexEntry(path string, n node, st unix.Stat_t) *index.Entry {
	return &index.Entry{
		Name: path, Mode: n.mode, Hash: n.hash,
		CreatedAt:  time.Unix(st.Ctim.Unix()),
		ModifiedAt: time.Unix(st.Mtim.Unix()),
		Dev:        uint32(st.Dev), Inode: uint32(st.Ino),
		UID: st.Uid, GID: st.Gid, Size: uint32(st.Size),
	}
}
