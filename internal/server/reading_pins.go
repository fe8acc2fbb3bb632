package server

import (
	"slices"

	gitserve "lockstep/internal/git/serve"
	"lockstep/internal/volume"
	"lockstep/tree"
)

// pins are the trees that a fetch keeps in place: one for each store, from which no object is ever deleted.
type pins struct {
	*gitserve.Pinned
	volume *volume.Volume
	trees  []*tree.Tree
}

func (p *pins) close() {
	for _, t := range p.trees {
		_ = t.Close()
	}
}

// add adds what Reader.Open returned.
func (p *pins) add(t *tree.Tree, err error) error {
	if err != nil {
		return err
	}
	stored, err := p.volume.StoreOf(t.Dir())
	if err != nil {
		_ = t.Close()
		return err
	}
	if slices.Contains(p.Dirs, stored.Dir) {
		_ = t.Close()
	} else {
		p.Dirs, p.trees = append(p.Dirs, stored.Dir), append(p.trees, t)
	}
	p.Shallow = append(p.Shallow, stored.Shallow...)
	if len(stored.Shallow) > 0 {
		p.Depth = max(p.Depth, int(max(stored.Depth, 1)))
	}
	return nil
}
