package serve

import (
	"cmp"
	"container/heap"
	"slices"

	"lockstep/internal/git/object"
)

// Flags of commits, besides those of their history.
const (
	visible   = object.FirstFlag      // reachable from a visible ref
	satisfied = object.FirstFlag << 1 // has a have among its ancestors
)

func setOf(ids []object.ID) map[object.ID]bool {
	set := make(map[object.ID]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// reach finds commits that are reachable from a set of commits, the newest ones first.
type reach struct {
	*object.History
	queue object.ByDate
}

// add adds a commit to those that others are reached from.
func (r *reach) add(c *object.Node) error {
	if c.Flags&visible != 0 {
		return nil
	}
	if err := r.Load(c); err != nil {
		return err
	}
	if c.Flags&object.Absent == 0 {
		c.Flags |= visible
		heap.Push(&r.queue, c)
	}
	return nil
}

// find walks until all ids are reached, or limit commits are visited, and returns those that are reached. Its
// time depends on ids that are not reachable only in that it walks to the end, whether or not the store has
// them.
func (r *reach) find(ids []object.ID, limit int) (found map[object.ID]bool, err error) {
	found = make(map[object.ID]bool, len(ids))
	missing := make(map[object.ID]bool, len(ids))
	for _, id := range ids {
		if c := r.Known[id]; c != nil && c.Flags&visible != 0 {
			found[id] = true
		} else {
			missing[id] = true
		}
	}
	for ; len(missing) > 0 && len(r.queue) > 0 && limit > 0; limit-- {
		c := heap.Pop(&r.queue).(*object.Node)
		for _, parent := range c.Parents {
			if err := r.add(parent); err != nil {
				return nil, err
			}
			if missing[parent.ID] && parent.Flags&visible != 0 {
				found[parent.ID] = true
				delete(missing, parent.ID)
			}
		}
	}
	return found, nil
}

// difference has the commits that a client lacks.
type difference struct {
	commits []*object.Node // newest first
	edges   []*object.Node // commits that the client has: first those that commits are based on, then the newest ones
}

func newDifference(commits, haves []*object.Node) difference {
	d, edges := difference{commits: commits}, map[*object.Node]bool{}
	addEdge := func(c *object.Node) {
		if c.Flags&object.Held != 0 && !edges[c] {
			edges[c] = true
			d.edges = append(d.edges, c)
		}
	}
	for _, c := range commits {
		for _, parent := range c.Parents {
			addEdge(parent)
		}
	}
	for _, c := range slices.SortedFunc(slices.Values(haves), func(a, b *object.Node) int {
		return cmp.Compare(b.Date, a.Date)
	}) {
		addEdge(c)
	}
	return d
}

// satisfies reports whether each want has a commit that the client has among its ancestors, as far as the
// walk that returned d has found.
func (d difference) satisfies(wants []*object.Node) bool {
	for _, c := range slices.Backward(d.commits) {
		for _, parent := range c.Parents {
			if parent.Flags&(object.Held|satisfied) != 0 {
				c.Flags |= satisfied
			}
		}
	}
	for _, c := range wants {
		if c.Flags&(object.Held|satisfied) == 0 {
			return false
		}
	}
	return true
}
