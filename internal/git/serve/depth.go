package serve

import (
	"strings"

	"lockstep/internal/git/object"
)

// boundary is where the history of a client ends.
type boundary struct {
	shallow   []object.ID        // new shallow commits
	unshallow []object.ID        // of the client's shallow commits, those that get parents
	reopened  []*object.Node     // the parents of unshallow
	ends      map[object.ID]bool // all shallow commits of the client afterwards
}

// boundary returns where the client's history ends after a request.
func (n *negotiation) boundary(wants []*object.Node) (b boundary, err error) {
	defer object.RecoverCorrupt(&err)
	had := setOf(n.req.shallow)
	b.ends = had
	if !n.req.deepens() {
		return b, nil
	}
	// A client may name any commit as shallow. Only below those that it may see does it get parents.
	reachable, err := n.find(n.req.shallow, maxCommits)
	if err != nil {
		return b, err
	}
	inside, last, err := n.measure(wants, reachable)
	if err != nil {
		return b, err
	}
	b.ends = make(map[object.ID]bool, len(had)+len(last))
	for _, c := range last {
		if b.ends[c.ID] = true; !had[c.ID] {
			b.shallow = append(b.shallow, c.ID)
		}
	}
	for _, id := range n.req.shallow {
		if b.ends[id] {
			continue
		}
		c := n.history.Known[id]
		opens := reachable[id] && inside(c)
		if opens {
			if opens, err = n.hasParents(c); err != nil {
				return b, err
			}
		}
		if opens {
			b.unshallow = append(b.unshallow, id)
			b.reopened = append(b.reopened, c.Parents...)
		} else {
			b.ends[id] = true
		}
	}
	return b, nil
}

// hasParents reports whether the store has the parents of a commit. It may lack those of refs that are not
// wanted, and have less history of them.
func (n *negotiation) hasParents(c *object.Node) (bool, error) {
	for _, parent := range c.Parents {
		if err := n.history.Load(parent); err != nil {
			return false, err
		}
		if parent.Flags&object.Absent != 0 {
			return false, nil
		}
	}
	return true, nil
}

// measure returns which commits have parents after a request that deepens, and the last ones, which have none any more.
func (n *negotiation) measure(
	wants []*object.Node, reachable map[object.ID]bool,
) (inside func(*object.Node) bool, last []*object.Node, err error) {
	if n.req.depth == 0 {
		return n.bySelection(wants)
	}
	if n.req.depth == unlimited && len(n.store.Shallow) == 0 {
		return func(*object.Node) bool { return true }, nil, nil
	}
	from, depth := wants, n.req.depth
	if n.req.relative {
		from = nil
		for id := range reachable {
			from = append(from, n.history.Node(id))
		}
		depth = min(depth, unlimited-1) + 1
	}
	last, err = n.descend(from, int32(depth))
	return func(c *object.Node) bool { return c.Depth > 0 && int(c.Depth) < depth }, last, err
}

// descend sets the depths of commits up to a depth, and returns those at that depth and those whose parents
// are not kept.
func (n *negotiation) descend(from []*object.Node, depth int32) (last []*object.Node, err error) {
	var level []*object.Node
	for _, c := range from {
		if c.Depth == 0 {
			c.Depth = 1
			level = append(level, c)
		}
	}
	for len(level) > 0 {
		var next []*object.Node
		for _, c := range level {
			if err := n.history.Load(c); err != nil {
				return nil, err
			}
			if n.history.Cut[c.ID] || c.Depth == depth && len(c.Parents) > 0 {
				last = append(last, c)
				continue
			}
			for _, parent := range c.Parents {
				if parent.Depth == 0 {
					parent.Depth = c.Depth + 1
					next = append(next, parent)
				}
			}
		}
		level = next
	}
	return last, nil
}

// bySelection selects commits by deepen-since and deepen-not.
func (n *negotiation) bySelection(
	wants []*object.Node,
) (inside func(*object.Node) bool, last []*object.Node, err error) {
	excluded, err := n.excluded()
	if err != nil {
		return nil, nil, err
	}
	selected, order, err := n.history.Ancestors(wants, func(c *object.Node) bool {
		return !excluded[c] && c.Date >= n.req.since
	})
	switch {
	case err != nil:
		return nil, nil, err
	case len(order) == 0:
		return nil, nil, refusef("no commits selected for shallow requests")
	}
	ends := map[*object.Node]bool{}
	for _, c := range order {
		isLast := n.history.Cut[c.ID]
		for _, parent := range c.Parents {
			isLast = isLast || !selected[parent]
		}
		if isLast {
			ends[c] = true
			last = append(last, c)
		}
	}
	return func(c *object.Node) bool { return selected[c] && !ends[c] }, last, nil
}

// excluded returns the history of the refs in deepen-not.
func (n *negotiation) excluded() (map[*object.Node]bool, error) {
	var tips []*object.Node
	for _, name := range n.req.not {
		id, ok := n.expand(name)
		if !ok {
			return nil, refusef("unknown ref %.200q in deepen-not", name)
		}
		c, err := n.history.CommitOf(id)
		if err != nil {
			return nil, err
		}
		if c != nil {
			tips = append(tips, c)
		}
	}
	excluded, _, err := n.history.Ancestors(tips, func(*object.Node) bool { return true })
	return excluded, err
}

// expand returns the visible ref with a name, which may be shortened.
func (n *negotiation) expand(name string) (object.ID, bool) {
	for _, prefix := range []string{"", "refs/", "refs/tags/", "refs/heads/"} {
		if !strings.HasPrefix(name, "refs/") || prefix == "" {
			if id, ok := n.repo.ref(prefix + name); ok {
				return id, true
			}
		}
	}
	return object.ZeroID, false
}
