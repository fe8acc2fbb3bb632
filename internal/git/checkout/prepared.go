package checkout

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
	"lockstep/internal/git/object"
)

// errRebuild means that a prepared tree cannot become the tree of a plan.
var errRebuild = errors.New("the plan rewrites files that have not changed")

// Update turns dst, a private copy of the plan's last tree without its .git, into the plan's tree, also without one.
// Like [Plan.Build], it shares no file that was modified since it was written. It applies the plan's changes,
// compares every other file by type, permissions, size, time and inode, and replaces modified ones. After an error the
// tree at dst is unusable.
func (p *Plan) Update(
	ctx context.Context, objects *object.Store, items []Item, dst string, links LinkPolicy, limits Limits,
	count func(files int64),
) (files *Files, err error) {
	defer object.RecoverCorrupt(&err)
	if !p.incremental || p.converted != nil {
		return nil, errRebuild
	}
	if err := p.makeRoom(dst); err != nil {
		return nil, buildError(err)
	}
	b := &builder{
		writer: writer{
			objects: objects, format: p.Commit.Format(), links: links, large: p.large, filled: p.filled,
		},
		prepared: true, maxBytes: limits.MaxTreeBytes, items: items, count: count,
	}
	made, written, err := b.build(ctx, dst, "")
	if err != nil {
		return nil, err
	}
	changed, err := p.changedFolders(dst, b.rewritten)
	if err != nil {
		return nil, buildError(err)
	}
	return &Files{
		Written: written, Changed: changed, made: made, format: b.format, large: p.selects, parts: p.parts,
	}, nil
}

// changedFolders returns the folders of the tree at dst that may be new or have new or removed names: those above the
// changes of the plan and the entries at the paths in rewritten, which were created.
func (p *Plan) changedFolders(dst string, rewritten []string) (changed []string, err error) {
	touched := map[string]bool{"": true} // for the .git
	touch := func(path string) {
		for ; !touched[path]; path = disk.Parent(path) { // path itself is a folder if it is a submodule
			touched[path] = true
		}
	}
	for _, path := range rewritten {
		touch(path)
	}
	for _, d := range p.changed {
		touch(d.path)
	}
	tree, err := disk.NewWalker(dst)
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	for _, folder := range slices.Sorted(maps.Keys(touched)) {
		switch _, err := tree.Enter(folder, disk.Dir.Open); {
		case err == nil:
			changed = append(changed, folder)
		case !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP):
			return nil, err
		}
	}
	return changed, nil
}

// makeRoom removes what the plan changes, and creates the folders of what it adds.
func (p *Plan) makeRoom(dst string) error {
	to, err := disk.NewWalker(dst)
	if err != nil {
		return err
	}
	defer to.Close()
	for _, d := range p.changed {
		if d.before.mode == filemode.Submodule {
			continue
		}
		if err := clearPath(to, d); err != nil {
			return err
		}
	}
	for _, d := range slices.Backward(p.changed) { // once they are empty, those within others first
		if d.before.mode != filemode.Submodule {
			continue
		}
		if err := clearPath(to, d); err != nil && !(p.filled[d.path] && errors.Is(err, unix.ENOTEMPTY)) {
			return err
		}
	}
	for _, d := range p.changed {
		if d.after.mode == 0 {
			continue
		}
		if _, err := to.Enter(disk.Parent(d.path), disk.Dir.OpenOrMake); err != nil {
			return err
		}
	}
	return nil
}

// clearPath removes the old entry of a change, and parent folders that become empty. A changed file is removed, not
// overwritten, because other trees share it.
func clearPath(d *disk.Walker, change difference) error {
	if change.before.mode == 0 {
		return nil
	}
	folder, err := d.Enter(disk.Parent(change.path), disk.Dir.Open)
	if errors.Is(err, os.ErrNotExist) && change.before.mode == filemode.Submodule {
		return nil // it went with the last file below it
	}
	if err != nil {
		return err
	}
	name := change.path[strings.LastIndexByte(change.path, '/')+1:]
	if err := folder.Remove(name, change.before.mode == filemode.Submodule); err != nil &&
		!errors.Is(err, os.ErrNotExist) {
		return err // a skipped link does not exist
	}
	if change.after.mode != 0 {
		return nil
	}
	for empty := d.Current; empty != ""; empty = disk.Parent(empty) {
		above, err := d.Enter(disk.Parent(empty), disk.Dir.Open)
		if err != nil {
			return err
		}
		switch err := above.Remove(empty[strings.LastIndexByte(empty, '/')+1:], true); {
		case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}
