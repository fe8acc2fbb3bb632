package serve

import (
	"context"
	"errors"
	"fmt"

	"lockstep/internal/git/object"
)

// objectSet is a set of objects of a store: one bit for each packed object.
type objectSet struct {
	packs [][]uint64
	loose map[object.ID]bool
}

func newObjectSet(stored *object.Stored) objectSet {
	return objectSet{packs: make([][]uint64, stored.Packs()), loose: map[object.ID]bool{}}
}

func (s *objectSet) has(id object.ID, at object.Place) bool {
	if at.Pack == object.Loose {
		return s.loose[id]
	}
	bits := s.packs[at.Pack]
	return bits != nil && bits[at.At/64]&(1<<(at.At%64)) != 0
}

// add adds an object, and reports whether it is new.
func (s *objectSet) add(stored *object.Stored, id object.ID, at object.Place) bool {
	if s.has(id, at) {
		return false
	}
	if at.Pack == object.Loose {
		s.loose[id] = true
		return true
	}
	if s.packs[at.Pack] == nil {
		s.packs[at.Pack] = make([]uint64, (stored.Count(int(at.Pack))+63)/64)
	}
	s.packs[at.Pack][at.At/64] |= 1 << (at.At % 64)
	return true
}

// selection is the objects of a pack.
type selection struct {
	ctx     context.Context
	objects *object.Store
	stored  *object.Stored
	thin    bool

	sent   objectSet
	held   objectSet // some of the objects that the client has
	count  int
	packed []int       // selected objects, by pack
	loose  []object.ID // selected loose objects, in the order of the walk
	hints  map[object.ID]object.ID
	edges  bool // the client has commits that the sent ones are based on
}

func newSelection(ctx context.Context, objects *object.Store, thin bool) (*selection, error) {
	stored, err := objects.Stored()
	if err != nil {
		return nil, object.Corruptf("read the store: %w", err)
	}
	return &selection{
		ctx: ctx, objects: objects, stored: stored, thin: thin,
		sent: newObjectSet(stored), held: newObjectSet(stored), packed: make([]int, stored.Packs()),
		hints: map[object.ID]object.ID{},
	}, nil
}

// add selects an object unless the client has it, and reports whether it is new. hint is an object that
// resembles it, which is sent or which the client has; zero for none.
func (s *selection) add(id, hint object.ID) (bool, error) {
	at, err := s.stored.Locate(id)
	if err != nil {
		return false, object.Corruptf("object %s: %w", id, err)
	}
	if s.held.has(id, at) || !s.sent.add(s.stored, id, at) {
		return false, nil
	}
	s.count++
	if at.Pack == object.Loose {
		s.loose = append(s.loose, id)
	} else {
		s.packed[at.Pack]++
	}
	if !hint.IsZero() && (at.Pack == object.Loose || s.edges) {
		s.hints[id] = hint
	}
	return true, nil
}

// hold notes that the client has an object, if the store has it too.
func (s *selection) hold(id object.ID) error {
	at, err := s.stored.Locate(id)
	switch {
	case errors.Is(err, object.ErrNotFound):
		return nil
	case err != nil:
		return object.Corruptf("object %s: %w", id, err)
	}
	s.held.add(s.stored, id, at)
	return nil
}

// run selects the objects of a plan.
func (s *selection) run(p *plan) error {
	w := newTreeWalk(s)
	var bases []object.ID
	for _, c := range p.edges {
		bases = append(bases, c.Tree)
	}
	s.edges = len(bases) > 0
	previous := object.ZeroID
	for i, c := range p.commits {
		if i%64 == 0 && s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		if _, err := s.add(c.ID, object.ZeroID); err != nil {
			return err
		}
		if err := w.commit(c.Tree, bases, previous); err != nil {
			return fmt.Errorf("tree of %s: %w", c.ID, err)
		}
		previous = c.Tree
	}
	if err := w.addPending(bases); err != nil {
		return err
	}
	for _, id := range p.others {
		if err := s.addOther(w, id); err != nil {
			return err
		}
	}
	return nil
}

// addOther selects a tag, a tree with what is in it, or a blob.
func (s *selection) addOther(w *treeWalk, id object.ID) error {
	obj, err := s.objects.Object(id)
	if err != nil {
		return object.Corruptf("object %s: %w", id, err)
	}
	if obj.Kind.String() == "tree" {
		return w.walk(id, nil, 0)
	}
	_, err = s.add(id, object.ZeroID)
	return err
}
