package view

import (
	"maps"
	"slices"
	"strings"

	"lockstep/internal/git"
	"lockstep/internal/git/wildmatch"
)

// node is a node of the trie. Each child is for the next segment of a path.
type node struct {
	names map[string]*node // children by name
	globs map[string]*node // children by pattern
	every *node            // child for any name
	deep  *node            // entered along with this node, for a **
	loops bool             // it is such a node: any name leads to it again
	views []int32          // views with a path that ends here, ascending
}

// insert adds a path of a view.
func (n *node) insert(segments []string, view int32) {
	for i, segment := range segments {
		switch {
		case segment == "*", segment == "**" && i == len(segments)-1: // as everything below what it names is selected
			n = child(&n.every)
		case segment == "**":
			if !n.loops { // ** repeated is one **
				n = child(&n.deep)
				n.loops = true
			}
		case strings.ContainsAny(segment, "*?["):
			n = childOf(&n.globs, segment)
		default:
			n = childOf(&n.names, unquote(segment))
		}
	}
	if len(n.views) == 0 || n.views[len(n.views)-1] != view {
		n.views = append(n.views, view)
	}
}

func child(at **node) *node {
	if *at == nil {
		*at = &node{}
	}
	return *at
}

func childOf(children *map[string]*node, key string) *node {
	if *children == nil {
		*children = map[string]*node{}
	}
	n := (*children)[key]
	if n == nil {
		n = &node{}
		(*children)[key] = n
	}
	return n
}

// unquote removes the backslashes of a segment that is not a pattern.
func unquote(segment string) string {
	if !strings.Contains(segment, `\`) {
		return segment
	}
	var name strings.Builder
	for i := 0; i < len(segment); i++ {
		if segment[i] == '\\' {
			i++
		}
		name.WriteByte(segment[i])
	}
	return name.String()
}

// Position is a place in a tree. No view has anything at or below a Position of length 0.
type Position []*node

// Top returns the position of the top of a tree.
func (s *Set) Top() Position {
	s.compile()
	return Position(nil).add(s.top, &wildmatch.Matcher{})
}

// Enter returns the position of the file or folder with a name in the folder p.
func (p Position) Enter(name string, m *wildmatch.Matcher) (below Position) {
	for _, n := range p {
		if n.loops {
			below = below.addOnce(n, m)
		}
		if next := n.names[name]; next != nil {
			below = below.add(next, m)
		}
		for pattern, next := range n.globs {
			if m.Match(pattern, name) {
				below = below.add(next, m)
			}
		}
		if n.every != nil {
			below = below.add(n.every, m)
		}
	}
	return below
}

func (p Position) add(n *node, m *wildmatch.Matcher) Position {
	p = append(p, n)
	if n.deep != nil {
		p = p.addOnce(n.deep, m)
	}
	return p
}

func (p Position) addOnce(n *node, m *wildmatch.Matcher) Position {
	m.Steps += len(p)
	if slices.Contains(p, n) {
		return p
	}
	return append(p, n)
}

// IsSelected reports whether a view has the file at the position, or everything below the folder.
func (p Position) IsSelected() bool {
	return slices.ContainsFunc(p, func(n *node) bool { return len(n.views) > 0 })
}

// Views returns the indexes in [Set.All] of the views that have the file at the position, or everything below
// the folder. Some may be there more than once.
func (p Position) Views() []int32 {
	var views []int32
	for _, n := range p {
		views = append(views, n.views...)
	}
	return views
}

// IsEnd reports whether no view has part of the folder at the position without having all of it.
func (p Position) IsEnd() bool {
	return !slices.ContainsFunc(p, func(n *node) bool {
		return n.loops || n.every != nil || len(n.names)+len(n.globs) > 0
	})
}

// ErrTooComplex means that the patterns of the views take too long to match.
var ErrTooComplex = git.Errorf(git.Permanent, git.ClassConfig,
	"the views' patterns take too long to match; use fewer * in them")

// Matches says which views have some of the paths given to [Set.Match].
type Matches struct {
	set   *Set
	hits  map[*node][]int32 // paths selected by the views of a node, ascending
	nodes map[int32][]*node // by view
}

// Match finds the views that have some of the paths of files, links or gitlinks. It is fastest if the paths
// are sorted. It returns ErrTooComplex or nil.
func (s *Set) Match(paths []string) (*Matches, error) {
	m := &Matches{set: s, hits: map[*node][]int32{}, nodes: map[int32][]*node{}}
	var matcher wildmatch.Matcher
	trail := []Position{s.Top()} // of the folders above the last path, and of the path
	var last []string            // segments of the last path
	for i, path := range paths {
		if matcher.IsExhausted() {
			return nil, ErrTooComplex
		}
		segments := strings.Split(path, "/")
		same := 0
		for same < len(last) && same < len(segments) && last[same] == segments[same] {
			same++
		}
		trail = trail[:same+1]
		for _, name := range segments[same:] {
			trail = append(trail, trail[len(trail)-1].Enter(name, &matcher))
		}
		last = segments
		for _, at := range trail {
			m.hit(at, int32(i))
		}
	}
	if matcher.IsExhausted() {
		return nil, ErrTooComplex
	}
	for n := range m.hits {
		for _, view := range n.views {
			m.nodes[view] = append(m.nodes[view], n)
		}
	}
	return m, nil
}

func (m *Matches) hit(at Position, path int32) {
	for _, n := range at {
		if len(n.views) == 0 {
			continue
		}
		if hits := m.hits[n]; len(hits) == 0 || hits[len(hits)-1] != path { // ** may select a file and a folder above it
			m.hits[n] = append(hits, path)
		}
	}
}

// Views returns the sorted names of the views that have some of the paths.
func (m *Matches) Views() []string {
	names := make([]string, 0, len(m.nodes))
	for _, view := range slices.Sorted(maps.Keys(m.nodes)) {
		names = append(names, m.set.names[view])
	}
	return names
}

// Paths returns the indexes of the first paths, at most limit, that a view has, and whether there are more.
func (m *Matches) Paths(view string, limit int) (indexes []int32, more bool) {
	at, ok := slices.BinarySearch(m.set.names, view)
	if !ok {
		return nil, false
	}
	for _, n := range m.nodes[int32(at)] {
		hits := m.hits[n]
		indexes = append(indexes, hits[:min(len(hits), limit+1)]...)
	}
	slices.Sort(indexes)
	indexes = slices.Compact(indexes)
	if len(indexes) > limit {
		return indexes[:limit], true
	}
	return indexes, false
}
