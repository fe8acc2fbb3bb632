package volume

import (
	"os"
	"slices"
	"time"

	"lockstep/internal/disk"
)

// discardTrees discards the affected trees that are not pinned, and everything private. A pinned tree is marked so that GC discards
// it as soon as it is unpinned. The caller holds the file lock.
func (p *purge) discardTrees() error {
	leftovers, err := p.f.leftovers()
	if err != nil {
		return err
	}
	more, err := p.f.views().leftovers()
	if err != nil {
		return err
	}
	for _, path := range append(leftovers, more...) {
		if err := p.f.discard(path); err != nil {
			return err
		}
	}
	if err := p.f.discardPrepared(); err != nil {
		return err
	}
	for _, path := range p.stale {
		if err := unpublish(path); err != nil {
			return err
		}
	}
	for tree := range p.affected {
		if err := p.discardTree(p.f, tree); err != nil {
			return err
		}
	}
	slices.Sort(p.result.Trees)
	if err := p.discardViews(); err != nil {
		return err
	}
	if err := p.f.dropMarks(nil); err != nil {
		return err
	}
	return p.f.dropStores(p.binding.MovedAway)
}

// discardTree discards a replaced tree, or marks it as one whose grace has ended long ago.
func (p *purge) discardTree(in folder, tree string) error {
	gone, err := in.discardUnpinned(tree)
	if err != nil {
		return err
	}
	if gone {
		p.result.Trees = append(p.result.Trees, p.v.relative(in.tree(tree)))
		return nil
	}
	p.pin(p.pinsOf(in, tree)...)
	if in.isPurgeMarked(tree) { // replacing the mark would hide it from readers for a moment
		return nil
	}
	if err := in.markRetired([]string{tree}, ""); err != nil {
		return err
	}
	long := time.Unix(0, 0)
	return disk.Error("retire a tree", os.Chtimes(in.mark(tree), long, long))
}

// discardViews discards all trees of views that no name links to: their commits are unknown, and building them again is cheap.
func (p *purge) discardViews() error {
	moved := func(l viewLinks) bool { return p.affected[l.Tree] && p.binding.MovedAway.covers(l.Tree) }
	if err := p.v.unpublishViews(p.f, p.binding, moved); err != nil {
		return err
	}
	links, err := p.v.viewTreeLinks(p.f, p.binding)
	if err != nil {
		return err
	}
	w, linked := p.f.views(), linkedTrees(links)
	trees, err := disk.ReadDir(w.trees())
	if err != nil {
		return disk.Error("list the trees of views", err)
	}
	for _, tree := range trees {
		if linked[tree.Name()] {
			continue
		}
		if err := p.discardTree(w, tree.Name()); err != nil {
			return err
		}
	}
	return w.dropMarks(nil)
}
