package server

import (
	"context"
	"os"
	"slices"

	gitserve "lockstep/internal/git/serve"
	"lockstep/internal/volume"
	"lockstep/tree"
)

// maxPinned is the number of trees that a fetch keeps open. If it wants more refs, it locks their stores,
// which then cannot be pruned.
const maxPinned = 16

// pins are the trees and stores that a fetch keeps in place.
type pins struct {
	*gitserve.Pinned
	volume  *volume.Volume
	trees   []*tree.Tree
	objects []*os.File // locks of stores
	locked  []string   // their folders
}

func (p *pins) close() {
	for _, t := range p.trees {
		_ = t.Close()
	}
	for _, file := range p.objects {
		_ = file.Close()
	}
}

// add adds what Reader.Open returned.
func (p *pins) add(ctx context.Context, t *tree.Tree, err error) error {
	if err != nil {
		return err
	}
	stored, err := p.volume.StoreOf(t.Dir())
	if err != nil {
		_ = t.Close()
		return err
	}
	if err := p.keep(ctx, t, stored.Dir); err != nil {
		_ = t.Close()
		return err
	}
	p.Shallow = append(p.Shallow, stored.Shallow...)
	if len(stored.Shallow) > 0 {
		p.Depth = max(p.Depth, int(max(stored.Depth, 1)))
	}
	return nil
}

// keep keeps the objects of a tree: by the tree, or by the lock of its store, of which another tree is open.
func (p *pins) keep(ctx context.Context, t *tree.Tree, store string) error {
	switch {
	case !slices.Contains(p.Dirs, store):
		p.Dirs = append(p.Dirs, store)
	case len(p.trees) < maxPinned:
	default:
		if !slices.Contains(p.locked, store) {
			file, err := volume.PinObjects(ctx, t.Dir())
			if err != nil {
				return err
			}
			p.objects, p.locked = append(p.objects, file), append(p.locked, store)
		}
		return t.Close()
	}
	p.trees = append(p.trees, t)
	return nil
}
