package view

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"lockstep/internal/git/checkout"
	"lockstep/internal/git/object"
	"lockstep/internal/git/wildmatch"
)

// Names returns the sorted names of the views, which must not be modified.
func (s *Set) Names() []string { return s.names }

// At returns the top of a tree, from which the files of the named views are selected.
func (s *Set) At(names ...string) checkout.Selection { return s.at(names, &wildmatch.Matcher{}) }

func (s *Set) at(names []string, m *wildmatch.Matcher) selection {
	return selection{s.Only(names...).Top(), m}
}

// IDs returns the ID of the tree object with only the files of each of the named views.
func (s *Set) IDs(
	ctx context.Context, objects *object.Store, tree object.ID, names []string,
) (map[string]string, error) {
	distinct, equal := s.distinct(names)
	ids := make(map[string]string, len(names))
	if err := s.addIDs(ctx, objects, tree, distinct, ids, &wildmatch.Matcher{}); err != nil {
		return nil, err
	}
	for _, name := range distinct {
		for _, same := range equal[name] {
			ids[same] = ids[name]
		}
	}
	return ids, nil
}

// distinct returns one of the named views of each list of paths, sorted, and by its name all those with the same
// paths.
func (s *Set) distinct(names []string) (distinct []string, equal map[string][]string) {
	first, equal := map[string]string{}, map[string][]string{}
	for _, name := range names {
		paths := strings.Join(s.paths[name], "\x00")
		if first[paths] == "" {
			first[paths] = name
		}
		equal[first[paths]] = append(equal[first[paths]], name)
	}
	return slices.Sorted(maps.Keys(equal)), equal
}

// addIDs adds the IDs of the named views, which are sorted.
func (s *Set) addIDs(
	ctx context.Context, objects *object.Store, tree object.ID, names []string, ids map[string]string,
	m *wildmatch.Matcher,
) error {
	found, err := checkout.FilterTrees(ctx, objects, tree, s.at(names, m))
	if errors.Is(err, checkout.ErrManySelections) {
		half := len(names) / 2
		if err := s.addIDs(ctx, objects, tree, names[:half], ids, m); err != nil {
			return err
		}
		return s.addIDs(ctx, objects, tree, names[half:], ids, m)
	}
	if err != nil {
		return err
	}
	for i, name := range names {
		id, ok := found[int32(i)]
		if !ok {
			id = tree.Format().EmptyTree()
		}
		ids[name] = id.String()
	}
	return nil
}

// selection is a [checkout.Selection] by the views of a set.
type selection struct {
	Position
	matcher *wildmatch.Matcher
}

func (s selection) By() []int32 {
	views := s.Views()
	s.matcher.Steps += len(views)
	return views
}

func (s selection) Enter(name string) checkout.Selection {
	below := s.Position.Enter(name, s.matcher)
	if len(below) == 0 || s.matcher.IsExhausted() {
		return nil
	}
	return selection{below, s.matcher}
}

func (s selection) Err() error {
	if s.matcher.IsExhausted() {
		return ErrTooComplex
	}
	return nil
}
