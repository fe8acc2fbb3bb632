package volume

import (
	"context"
	"errors"
	"os"

	"lockstep/events"
	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// maxRecyclable is the number of retired trees kept for recycling: more than one, so that two refs do not compete.
const maxRecyclable = 2

// recycle turns a retired tree into the plan's tree at dst by writing only the differences. It returns nil if there is no
// suitable tree or the tree is damaged; then the tree must be built.
func (s *syncer) recycle(ctx context.Context, dst string) (*checkout.Files, error) {
	if !s.v.cfg.ReuseTrees {
		return nil, nil
	}
	if err := os.RemoveAll(dst); err != nil {
		return nil, disk.Error("build the tree", err)
	}
	if taken, err := s.takeReclaimable(ctx, dst); !taken || err != nil {
		return nil, err
	}
	files, err := s.plan.Patch(ctx, s.objects, dst, s.v.cfg.Links, s.v.cfg.checkoutLimits(),
		func(files int64) { s.progress.begin(events.PhaseBuild, "files", files) }, s.progress.count)
	if err != nil && ctx.Err() == nil {
		return nil, nil
	}
	return files, err
}

// takeReclaimable moves the ref's newest reclaimable unpinned tree to dst. The newest one differs least; the trees of
// other refs may have nothing in common with it.
func (s *syncer) takeReclaimable(ctx context.Context, dst string) (taken bool, err error) {
	err = s.f.guarded(ctx, s.req.Fence, func() error {
		links, err := s.v.links(s.f, s.binding)
		if err != nil {
			return err
		}
		trees, err := s.reclaimable(links)
		for i := len(trees) - 1; i >= 0 && !taken && err == nil; i-- {
			if ref, _, ok := checkout.RefAndCommit(s.f.tree(trees[i].name)); ok && ref == s.tip.Ref.String() {
				taken, err = s.f.moveUnpinned(trees[i].name, dst)
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
		return false, disk.Error("take a retired tree", err)
	}
	if err := os.Remove(f.mark(tree)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return true, disk.Error("drop a retired tree's mark", err)
	}
	return true, nil
}

// surplus returns the reclaimable trees that are not kept for recycling.
func (v *Volume) surplus(trees []retiredTree) []retiredTree {
	if !v.cfg.ReuseTrees {
		return trees
	}
	return trees[:max(0, len(trees)-maxRecyclable)]
}
