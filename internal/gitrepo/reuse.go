package gitrepo

import (
	"context"
	"errors"
	"os"
	"path"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"

	"lockstep/events"
)

// keptSpares is how many spare trees are kept to be brought forward, when that is wanted. There is more
// than one so that two refs do not take each other's.
const keptSpares = 2

// bringForward makes a spare tree into the plan's, at dst, by what differs between the two. It costs as
// much as the change, but for the index. ok is false when there is no such tree, or it is not what it
// should be: then there is nothing at dst, and the tree is to be built.
func (s *syncing) bringForward(ctx context.Context, dst string) (made manifest, written []string, ok bool, err error) {
	if !s.v.cfg.ReuseTrees {
		return nil, nil, false, nil
	}
	if taken, err := s.takeSpare(ctx, dst); !taken || err != nil {
		return nil, nil, false, err
	}
	made, written, err = s.makeOver(ctx, dst)
	switch {
	case err == nil:
		return made, written, true, nil
	case ctx.Err() != nil, events.ClassOf(err) == events.ClassQuota:
		return nil, nil, false, err
	}
	return nil, nil, false, volumeError("build the tree", os.RemoveAll(dst))
}

// takeSpare moves a spare tree to dst, the youngest that nobody has pinned: it differs the least.
func (s *syncing) takeSpare(ctx context.Context, dst string) (taken bool, err error) {
	err = s.f.guarded(ctx, s.req.Fence, func() error {
		links, err := s.v.links(s.f, s.binding.Repo)
		if err != nil {
			return err
		}
		spare, err := s.spare(links)
		for i := len(spare) - 1; i >= 0 && !taken && err == nil; i-- {
			taken, err = s.f.moveUnpinned(spare[i].name, dst)
		}
		return err
	})
	return taken, err
}

// moveUnpinned moves a tree to dst unless a reader has it pinned.
func (f folder) moveUnpinned(tree, dst string) (moved bool, err error) {
	release, ok, err := f.claim(tree)
	if err != nil || !ok {
		return false, err
	}
	defer release()
	if err := os.Rename(f.tree(tree), dst); err != nil {
		return false, volumeError("take a spare tree", err)
	}
	return true, nil
}

var errNoManifest = errors.New("the tree's manifest or commit cannot be read")

// makeOver makes the tree at dst into the plan's.
func (s *syncing) makeOver(ctx context.Context, dst string) (made manifest, written []string, err error) {
	defer recoverCorrupt(&err)
	old := openLastTree(dst)
	if old == nil {
		return nil, nil, errNoManifest
	}
	before, known := s.objects.treeOf(old.commit)
	if !known {
		return nil, nil, errNoManifest
	}
	found, err := differences(ctx, s.objects, before, s.plan.tree, s.v.cfg.MaxTreeFiles)
	if err != nil {
		return nil, nil, err
	}
	to, err := descend(dst)
	if err != nil {
		return nil, nil, buildError(err)
	}
	defer to.close()
	for _, d := range found {
		if err := to.clear(d); err != nil {
			return nil, nil, buildError(err)
		}
	}
	w := writer{s.objects, s.v.cfg.Links}
	p := plan{last: old, since: true, changed: found}
	made = make(manifest, 0, len(old.files)+len(found))
	bytes := int64(0)
	for _, it := range p.items() {
		t := it.was
		if t.isSkipped() {
			folder, err := to.enter(folderOf(it.path), dir.openOrMake)
			if err != nil {
				return nil, nil, buildError(err)
			}
			if t, err = w.write(ctx, folder, it.entry, path.Base(it.path)); err != nil {
				return nil, nil, err
			}
			if t.isSkipped() {
				continue
			}
			if it.mode != filemode.Submodule {
				written = append(written, it.path)
			}
		}
		if bytes += int64(t.size()); bytes > s.v.cfg.MaxTreeBytes {
			return nil, nil, treeTooLarge(s.v.cfg.MaxTreeBytes)
		}
		made = append(made, t)
	}
	return made, written, nil
}

// clear takes away what is at a path before it is made anew, and the folders that are empty then. A
// changed file is never written to: other trees share it.
func (d *descent) clear(change difference) error {
	if change.before.mode == 0 {
		return nil
	}
	folder, err := d.enter(folderOf(change.path), dir.open)
	if err != nil {
		return err
	}
	if err := folder.remove(path.Base(change.path), change.before.mode == filemode.Submodule); err != nil {
		return err
	}
	if change.after.mode != 0 {
		return nil
	}
	for empty := d.at; empty != ""; empty = folderOf(empty) {
		above, err := d.enter(folderOf(empty), dir.open)
		if err != nil {
			return err
		}
		switch err := above.remove(path.Base(empty), true); {
		case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

// unneeded returns those of the spare trees that are not kept to be brought forward: all but the
// youngest, if any are.
func (s *syncing) unneeded(spare []retiredTree) []retiredTree {
	if !s.v.cfg.ReuseTrees {
		return spare
	}
	return spare[:max(0, len(spare)-keptSpares)]
}
