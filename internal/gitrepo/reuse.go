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
// much as the change, but for the index. It returns nil when there is no such tree, or it is not what it
// should be: then there is nothing at dst, and the tree is to be built.
func (s *syncing) bringForward(ctx context.Context, dst string) (*builtFiles, error) {
	if !s.v.cfg.ReuseTrees {
		return nil, nil
	}
	if taken, err := s.takeSpare(ctx, dst); !taken || err != nil {
		return nil, err
	}
	files, err := s.makeOver(ctx, dst)
	if err != nil && ctx.Err() == nil {
		files, err = nil, volumeError("build the tree", os.RemoveAll(dst))
	}
	return files, err
}

// takeSpare moves a spare tree to dst, the youngest of the ref that nobody has pinned: it differs the least.
// Another ref's may have nothing in common, and would be written from end to end.
func (s *syncing) takeSpare(ctx context.Context, dst string) (taken bool, err error) {
	err = s.f.guarded(ctx, s.req.Fence, func() error {
		links, err := s.v.links(s.f, s.binding)
		if err != nil {
			return err
		}
		spare, err := s.spare(links)
		for i := len(spare) - 1; i >= 0 && !taken && err == nil; i-- {
			if ref, _, ok := checkedOut(s.f.tree(spare[i].name)); ok && ref == s.tip.ref.String() {
				taken, err = s.f.moveUnpinned(spare[i].name, dst)
			}
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
func (s *syncing) makeOver(ctx context.Context, dst string) (files *builtFiles, err error) {
	defer recoverCorrupt(&err)
	old := openLastTree(dst, s.v.cfg.Links)
	if old == nil {
		return nil, errNoManifest
	}
	before, known := s.objects.treeOf(old.commit)
	if !known {
		return nil, errNoManifest
	}
	found, err := differences(ctx, s.objects, before, s.plan.tree, s.v.cfg.MaxTreeFiles)
	if err != nil {
		return nil, err
	}
	to, err := descend(dst)
	if err != nil {
		return nil, buildError(err)
	}
	defer to.close()
	for _, d := range found {
		if err := to.clear(d); err != nil {
			return nil, buildError(err)
		}
	}
	s.gauge.begin(events.PhaseBuild, "files", int64(len(found)))
	files = &builtFiles{}
	made := make(map[string]tracked, len(found))
	w := writer{s.objects, s.v.cfg.Links}
	for _, d := range found {
		s.gauge.count(1)
		if d.after.mode == 0 {
			continue
		}
		folder, err := to.enter(folderOf(d.path), dir.openOrMake)
		if err != nil {
			return nil, buildError(err)
		}
		t, err := w.write(ctx, folder, entry{d.path, d.after.mode, d.after.hash}, path.Base(d.path))
		if err != nil {
			return nil, err
		}
		made[d.path] = t
		if !t.isSkipped() && t.mode != filemode.Submodule {
			files.written = append(files.written, d.path)
		}
	}
	files.index = func() ([]byte, error) {
		content, bytes, err := amend(gitDirOf(dst).manifest(), found, made)
		if err == nil && bytes > s.v.cfg.MaxTreeBytes {
			err = treeTooLarge(s.v.cfg.MaxTreeBytes)
		}
		return content, err
	}
	return files, nil
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
func (v *Volume) unneeded(spare []retiredTree) []retiredTree {
	if !v.cfg.ReuseTrees {
		return spare
	}
	return spare[:max(0, len(spare)-keptSpares)]
}
