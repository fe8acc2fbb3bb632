package volume

import (
	"context"
	"os"

	"lockstep/internal/disk"
	"lockstep/internal/git/checkout"
)

// tidyViews retires the trees of views that no name links to, discards those whose grace has ended, and
// removes the names of a repository that has moved away, once their grace has ended. Only [Volume.GC] calls
// it: reading thousands of links would delay a sync.
func (h *holder) tidyViews(ctx context.Context) error {
	due, err := h.v.viewsAreDue(h.f, h.binding)
	if err != nil || !due {
		return err
	}
	h.queryResults(ctx)
	return h.f.guarded(ctx, h.fence, h.clearViews)
}

// viewsAreDue reports whether tidyViews has work to do.
func (v *Volume) viewsAreDue(f folder, b binding) (bool, error) {
	w := f.views()
	trees, err := disk.ReadDir(w.trees())
	if err != nil {
		return false, disk.Error("list the trees of views", err)
	}
	if len(trees) == 0 {
		return false, nil
	}
	links, err := v.viewTreeLinks(f, b)
	if err != nil {
		return false, err
	}
	leftovers, err := w.leftovers()
	if err != nil || len(leftovers) > 0 {
		return true, err
	}
	unlinked, err := w.unlinked(links)
	if err != nil || len(unlinked) > 0 {
		return true, err
	}
	marks, err := disk.ReadDir(w.retired())
	if err != nil {
		return false, disk.Error("list the retired trees of views", err)
	}
	linked := linkedTrees(links)
	for _, mark := range marks {
		if linked[mark.Name()] {
			return true, nil
		}
	}
	expired, err := w.expired(links, v.cfg.Grace)
	return len(expired) > 0 || b.MovedAway.isExpired(v.cfg.Grace), err
}

func (h *holder) clearViews() error {
	w := h.f.views()
	if h.binding.MovedAway.isExpired(h.v.cfg.Grace) {
		bound := h.binding.Remote != ""
		err := h.v.unpublishViews(h.f, h.binding, func(l viewLinks) bool { return l.isOf(h.binding.MovedAway, bound) })
		if err != nil {
			return err
		}
	}
	leftovers, err := w.leftovers()
	if err != nil {
		return err
	}
	for _, path := range leftovers {
		if err := h.f.discard(path); err != nil {
			return err
		}
	}
	temporary, err := disk.Glob(h.f.viewLinks(), "*/*"+linksExt+disk.TempInfix+"*")
	for _, path := range temporary {
		_ = os.Remove(path) // left behind by crashed holders
	}
	if err != nil {
		return err
	}
	links, err := h.v.viewTreeLinks(h.f, h.binding)
	if err != nil {
		return err
	}
	expired, err := w.expired(links, h.v.cfg.Grace)
	if err != nil {
		return err
	}
	for _, tree := range expired {
		if tree.isNamed(h.horizon) && !h.isUnprotected(tree) {
			continue
		}
		if _, err := w.discardUnpinned(tree.name); err != nil {
			return err
		}
	}
	unlinked, err := w.unlinked(links)
	if err != nil {
		return err
	}
	if err := w.markRetired(unlinked, h.horizon.Latest); err != nil {
		return err
	}
	if err := w.dropMarks(links); err != nil {
		return err
	}
	for _, tree := range links {
		_ = os.Remove(w.mark(tree)) // published again
	}
	return nil
}

// checkViews checks the trees of views.
func (c *verifier) checkViews() error {
	w := c.f.views()
	links, err := c.v.viewTreeLinks(c.f, c.binding)
	if err != nil {
		return err
	}
	linked := linkedTrees(links)
	for path, tree := range links {
		if _, err := os.Stat(w.tree(tree)); err != nil {
			c.check.Found(path, "its tree is missing; sync to build it again")
		}
	}
	entries, err := disk.ReadDir(w.trees())
	if err != nil {
		return disk.Error("list the trees of views", err)
	}
	objects, err := c.f.openStores()
	if err != nil {
		return err
	}
	defer objects.Close()
	var paths []string
	for _, entry := range entries {
		g := checkout.GitDirOf(w.tree(entry.Name()))
		_, err := os.Lstat(g.Ref())
		switch damaged := err != nil; {
		case !linked[entry.Name()] && (damaged || g.Large() != ""): // its pointers may be gone
		case damaged:
			c.check.Found(w.tree(entry.Name()), "marked as damaged; sync to replace it")
		default:
			paths = append(paths, w.tree(entry.Name()))
		}
	}
	return c.check.CheckViews(paths, objects)
}
