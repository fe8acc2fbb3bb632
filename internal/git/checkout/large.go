package checkout

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/git/object"
)

// Large has the content of files whose blobs are pointers to it, as with Git LFS. It is safe for concurrent use.
type Large interface {
	// Find returns the file with the content of the file at path, which has this blob. It returns nil if the
	// blob is the content.
	Find(ctx context.Context, path string, blob object.ID, executable bool) (*LargeFile, error)
}

// LargeFile is a file outside of the tree. Trees have hard links to it, so it never changes.
type LargeFile struct {
	Path string // "" if the content is empty
	Size int64
}

// SetLarge sets what has the content of large files, and what [GitDir.Large] of the tree returns, before it
// is built. converted, if not nil, reports whether the content of a file changes although its blob does not.
// Then every such file is rewritten, and no prepared tree is used.
func (p *Plan) SetLarge(large Large, selects string, converted func(path string) bool) {
	p.large, p.selects, p.converted = large, selects, converted
}

func (p *Plan) converts(e entry) bool {
	return p.converted != nil && isFile(e.mode) && p.converted(e.path)
}

func isFile(mode filemode.FileMode) bool {
	return mode == filemode.Regular || mode == filemode.Executable
}

// Tree returns the ID of the tree.
func (p *Plan) Tree() object.ID { return p.tree }

// LastTree returns the last tree's ID, what it selects, and whether a path at which it differs satisfies a
// condition. known is false if there is no last tree, or its objects are not readable.
func (p *Plan) LastTree(objects *object.Store, changes func(path string) bool) (id object.ID, changed, known bool) {
	if p.last == nil || !p.comparesLast {
		return object.ZeroID, false, false
	}
	for _, d := range p.sinceLast {
		changed = changed || changes(d.path)
	}
	id, known = objects.TreeOf(p.last.commit)
	return id, changed, known
}

// PartsDiffer reports whether the set of submodules with files differs from that of the last tree, or whether
// a path that differs within a submodule satisfies a condition.
func (p *Plan) PartsDiffer(changes func(path string) bool) bool {
	before, after := p.last.Parts().filled(), p.parts.filled()
	for path := range after {
		if _, stays := before[path]; !stays {
			return true
		}
	}
	return len(before) != len(after) ||
		slices.ContainsFunc(p.changed, func(d difference) bool { return d.inPart && changes(d.path) })
}

// Large returns the LFS selection of the tree, see [GitDir.Large].
func (t *Tree) Large() string {
	if t == nil {
		return ""
	}
	return t.large
}

// NewFiles lists the files that are not taken from the last tree, unless they were altered there.
func (p *Plan) NewFiles(visit func(path string, executable bool, blob object.ID) error) error {
	if p.incremental && p.converted == nil {
		for _, d := range p.changed {
			if isFile(d.after.mode) {
				if err := visit(d.path, d.after.mode == filemode.Executable, d.after.hash); err != nil {
					return err
				}
			}
		}
		return nil
	}
	items, err := p.Items()
	if err != nil {
		return err
	}
	for _, it := range items {
		if isFile(it.mode) && it.was.raw == "" {
			if err := visit(it.path, it.mode == filemode.Executable, it.hash); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeLarge creates a file that is large. done is false if it is not; linked reports whether it is a hard link.
func (w writer) writeLarge(ctx context.Context, folder disk.Dir, e entry, name string) (done, linked bool, err error) {
	if w.large == nil || !isFile(e.mode) {
		return false, false, nil
	}
	file, err := w.large.Find(ctx, e.path, e.hash, e.mode == filemode.Executable)
	if err != nil || file == nil {
		return false, false, err
	}
	if file.Path != "" && folder.LinkFile(file.Path, name) == nil {
		st, err := folder.Stat(name)
		if err != nil {
			return false, false, buildError(err)
		}
		if w.modes.fit(e.mode, st.Mode) {
			return true, true, nil
		}
		if err := folder.Remove(name, false); err != nil {
			return false, false, buildError(err)
		}
	}
	return true, false, w.copyLarge(ctx, folder, e, name, file) // also beyond the limit of links to one file
}

// copyLarge copies a large file that cannot be linked.
func (w writer) copyLarge(ctx context.Context, folder disk.Dir, e entry, name string, file *LargeFile) error {
	to, err := w.create(folder, e, name)
	if err != nil {
		return err
	}
	if file.Path == "" {
		return buildError(to.Close())
	}
	from, err := os.OpenFile(filepath.Clean(file.Path), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err == nil {
		defer from.Close()
		_, err = io.Copy(object.CancelWriter{Ctx: ctx, Writer: to}, from)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return buildError(errors.Join(err, to.Close()))
}
