package volume

import (
	"context"
	"errors"
	"os"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// maxRecyclable is how many spare trees are kept to be recycled, if [Config].ReuseTrees. There is more
// than one so that two refs do not take each other's.
const maxRecyclable = 2

// recycle turns a spare tree into the plan's, at dst, by writing what differs. It costs as
// much as the change, but for the index. It returns nil when there is no such tree, or it is not what it
// should be: then there is nothing at dst, and the tree is to be built.
func (s *syncer) recycle(ctx context.Context, dst string) (*checkout.Files, error) {
	if !s.v.cfg.ReuseTrees {
		return nil, nil
	}
	if taken, err := s.takeReclaimable(ctx, dst); !taken || err != nil {
		return nil, err
	}
	files, err := s.plan.Patch(ctx, s.objects, dst, s.v.cfg.Links, s.v.cfg.checkoutLimits(),
		func(files int64) { s.progress.begin(events.PhaseBuild, "files", files) }, s.progress.count)
	if err != nil && ctx.Err() == nil {
		files, err = nil, disk.Error("build the tree", os.RemoveAll(dst))
	}
	return files, err
}

// takeReclaimable moves a spare tree to dst, the youngest of the ref that nobody has pinned: it differs the least.
// Another ref's may have nothing in common, and would be written from end to end.
func (s *syncer) takeReclaimable(ctx context.Context, dst string) (taken bool, err error) {
	err = s.f.guarded(ctx, s.req.Fence, func() error {
		links, err := s.v.links(s.f, s.binding)
		if err != nil {
			return err
		}
		spare, err := s.reclaimable(links)
		for i := len(spare) - 1; i >= 0 && !taken && err == nil; i-- {
			if ref, _, ok := checkout.RefAndCommit(s.f.tree(spare[i].name)); ok && ref == s.tip.Ref.String() {
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
		return false, disk.Error("take a spare tree", err)
	}
	if err := os.Remove(f.mark(tree)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return true, disk.Error("drop a retired tree's mark", err)
	}
	return true, nil
}

// unneeded returns those of the spare trees that are not kept to be recycled: all but the
// youngest, if any are.
func (v *Volume) surplus(spare []retiredTree) []retiredTree {
	if !v.cfg.ReuseTrees {
		return spare
	}
	return spare[:max(0, len(spare)-maxRecyclable)]
}
