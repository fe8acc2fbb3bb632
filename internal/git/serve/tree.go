package serve

import (
	"context"
	"errors"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/git/object"
)

// Bounds of a walk through trees.
const (
	maxTreeDepth  = 4096
	keptEntries   = 50_000 // entries of trees that are kept in memory
	searchEntries = 20_000 // entries of the client's trees that are read to find what was renamed or copied
)

// treeWalk selects the objects in trees. It reads only the trees that differ from those that it compares them with.
type treeWalk struct {
	s       *selection
	trees   treeCache
	pending []addition           // entries with no counterpart in the client's trees
	removed []object.TreeEntry   // that the client has, at most searchEntries
	names   map[string]object.ID // what the client has, by name, for entries that are removed
	visits  int
}

// addition is an entry that the client's trees do not have at its path.
type addition struct {
	object.TreeEntry
	hint object.ID
}

func newTreeWalk(s *selection) *treeWalk {
	return &treeWalk{s: s, trees: treeCache{known: map[object.ID][]object.TreeEntry{}}, names: map[string]object.ID{}}
}

// counterpart is a tree at the same path in another commit.
type counterpart struct {
	tree    object.ID
	held    bool // the client has it; otherwise it was walked before
	entries []object.TreeEntry
	next    int                // in entries, for find
	skipped []object.TreeEntry // before next, that find has not returned
}

// addCounterpart adds a tree unless it is there already.
func addCounterpart(others []counterpart, tree object.ID, held bool) []counterpart {
	for i := range others {
		if others[i].tree == tree {
			others[i].held = others[i].held || held
			return others
		}
	}
	return append(others, counterpart{tree: tree, held: held})
}

// commit selects the objects in the tree of a commit. The client has bases; previous is the tree walked
// before, or zero.
func (w *treeWalk) commit(tree object.ID, bases []object.ID, previous object.ID) error {
	var others []counterpart
	for _, base := range bases {
		if base == tree {
			return nil
		}
		others = addCounterpart(others, base, true)
	}
	if !previous.IsZero() {
		others = addCounterpart(others, previous, false)
	}
	return w.walk(tree, others, 0)
}

// walk selects a tree and what is in it, as far as it differs from its counterparts.
func (w *treeWalk) walk(tree object.ID, others []counterpart, depth int) error {
	if depth > maxTreeDepth {
		return refusef("a tree has more than %d levels", maxTreeDepth)
	}
	if w.visits++; w.visits%64 == 0 && w.s.ctx.Err() != nil {
		return context.Cause(w.s.ctx)
	}
	if isNew, err := w.s.add(tree, w.hint(others)); !isNew || err != nil {
		return err
	}
	entries, err := w.trees.read(w.s.objects, tree)
	if err != nil {
		return object.Corruptf("read %s: %w", tree, err)
	}
	for i := range others {
		if err := w.open(&others[i]); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if e.Mode == filemode.Submodule {
			continue
		}
		if err := w.entry(e, others, depth); err != nil {
			return err
		}
	}
	w.noteRemoved(others)
	return nil
}

// noteRemoved records the entries of a client's tree that the new version lacks.
func (w *treeWalk) noteRemoved(others []counterpart) {
	for i := range others {
		if room := searchEntries - len(w.removed); others[i].held && room > 0 {
			rest := others[i].rest()
			w.removed = append(w.removed, rest[:min(len(rest), room)]...)
		}
	}
}

// hint returns the tree that a tree may be a delta on.
func (w *treeWalk) hint(others []counterpart) object.ID {
	for _, o := range others {
		if w.s.thin || !o.held {
			return o.tree
		}
	}
	return object.ZeroID
}

// open reads the entries of a counterpart. The store may lack it if the client has it.
func (w *treeWalk) open(o *counterpart) error {
	if o.held {
		if err := w.s.hold(o.tree); err != nil {
			return err
		}
	}
	entries, err := w.trees.read(w.s.objects, o.tree)
	if errors.Is(err, object.ErrNotFound) && o.held {
		return nil
	}
	if err != nil {
		return object.Corruptf("read %s: %w", o.tree, err)
	}
	o.entries = entries
	return nil
}

// entry selects an entry of a tree unless a counterpart has it.
func (w *treeWalk) entry(e object.TreeEntry, others []counterpart, depth int) error {
	var below []counterpart
	hint, isThere, isSame := object.ZeroID, false, false
	for i := range others {
		match, ok := others[i].find(e)
		switch {
		case !ok, isSame, match.Mode == filemode.Submodule: // whose ID can be that of anything
			continue
		case match.Hash == e.Hash:
			isSame = true
			continue
		case (match.Mode == filemode.Dir) != (e.Mode == filemode.Dir):
			continue
		}
		isThere = isThere || others[i].held
		below = addCounterpart(below, match.Hash, others[i].held)
		if hint.IsZero() && (w.s.thin || !others[i].held) {
			hint = match.Hash
		}
		if others[i].held && e.Mode != filemode.Dir {
			if err := w.s.hold(match.Hash); err != nil {
				return err
			}
		}
	}
	switch {
	case isSame:
		return nil
	case !isThere && w.s.edges:
		w.pending = append(w.pending, addition{e, hint})
		return nil
	case e.Mode == filemode.Dir:
		return w.walk(e.Hash, below, depth+1)
	}
	_, err := w.s.add(e.Hash, hint)
	return err
}

// addPending selects the entries without a counterpart, except those that the client has under another name.
// To find these, it reads some of the client's trees, removed entries first.
func (w *treeWalk) addPending(bases []object.ID) error {
	if len(w.pending) == 0 {
		return nil
	}
	left := searchEntries
	for _, e := range w.removed {
		if err := w.search(e, &left, true); err != nil {
			return err
		}
	}
	for _, base := range bases {
		if err := w.search(object.TreeEntry{Mode: filemode.Dir, Hash: base}, &left, false); err != nil {
			return err
		}
	}
	for _, added := range w.pending {
		if err := w.addNew(added.TreeEntry, added.hint, 0); err != nil {
			return err
		}
	}
	return nil
}

// search notes an entry of the client's trees and what is below it, until left is used up.
func (w *treeWalk) search(e object.TreeEntry, left *int, removed bool) error {
	if *left--; *left < 0 || e.Mode == filemode.Submodule {
		return nil
	}
	if err := w.s.hold(e.Hash); err != nil {
		return err
	}
	if _, known := w.names[e.Name]; removed && !known {
		w.names[e.Name] = e.Hash
	}
	if e.Mode != filemode.Dir {
		return nil
	}
	entries, err := w.trees.read(w.s.objects, e.Hash)
	if errors.Is(err, object.ErrNotFound) {
		return nil
	}
	if err != nil {
		return object.Corruptf("read %s: %w", e.Hash, err)
	}
	for _, below := range entries {
		if err := w.search(below, left, removed); err != nil {
			return err
		}
	}
	return nil
}

// addNew selects an entry and what is below it. Something that was removed under the same name may resemble it.
func (w *treeWalk) addNew(e object.TreeEntry, hint object.ID, depth int) error {
	if depth > maxTreeDepth {
		return refusef("a tree has more than %d levels", maxTreeDepth)
	}
	if e.Mode == filemode.Submodule {
		return nil
	}
	if hint.IsZero() && w.s.thin {
		hint = w.names[e.Name]
	}
	isNew, err := w.s.add(e.Hash, hint)
	if !isNew || err != nil || e.Mode != filemode.Dir {
		return err
	}
	entries, err := w.trees.read(w.s.objects, e.Hash)
	if err != nil {
		return object.Corruptf("read %s: %w", e.Hash, err)
	}
	for _, below := range entries {
		if err := w.addNew(below, object.ZeroID, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// find returns the entry of the same name and kind. It is called with the entries of a tree, in Git's order.
func (o *counterpart) find(e object.TreeEntry) (object.TreeEntry, bool) {
	for o.next < len(o.entries) {
		match := o.entries[o.next]
		order := compareEntries(match, e)
		if order > 0 {
			break
		}
		o.next++
		if order == 0 {
			return match, true
		}
		o.skipped = append(o.skipped, match)
	}
	return object.TreeEntry{}, false
}

// rest returns the entries that find did not return.
func (o *counterpart) rest() []object.TreeEntry { return append(o.skipped, o.entries[o.next:]...) }

// compareEntries orders entries as Git does: a folder as if its name ended in a slash.
func compareEntries(a, b object.TreeEntry) int { return strings.Compare(sortName(a), sortName(b)) }

func sortName(e object.TreeEntry) string {
	if e.Mode == filemode.Dir {
		return e.Name + "/"
	}
	return e.Name
}

// treeCache keeps the entries of the trees read last.
type treeCache struct {
	known map[object.ID][]object.TreeEntry
	order []object.ID // oldest first
	size  int         // entries
}

func (c *treeCache) read(objects *object.Store, tree object.ID) ([]object.TreeEntry, error) {
	if entries, ok := c.known[tree]; ok {
		return entries, nil
	}
	entries, err := objects.Tree(tree)
	if err != nil {
		return nil, err
	}
	c.known[tree] = entries
	c.order = append(c.order, tree)
	for c.size += len(entries) + 1; c.size > keptEntries; c.order = c.order[1:] {
		c.size -= len(c.known[c.order[0]]) + 1
		delete(c.known, c.order[0])
	}
	return entries, nil
}
