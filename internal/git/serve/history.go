package serve

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"slices"

	"lockstep/internal/git/object"
)

// commit is a commit of a history. Its parents are known once it is loaded.
type commit struct {
	id, tree object.ID
	parents  []*commit
	date     int64
	depth    int32 // during a breadth-first walk: distance from its start, which has 1
	flags    flags
}

type flags uint8

const (
	loaded    flags = 1 << iota
	absent          // not in the store, or no commit
	visible         // reachable from a visible ref
	wanted          // reachable from a want
	held            // reachable from a have: the client has it
	queued          // in the queue of a walk
	open            // counted by a walk
	satisfied       // has a have among its ancestors
)

// history is the graph of commits in a store, read as far as needed.
type history struct {
	ctx     context.Context // of the request
	objects *object.Store
	known   map[object.ID]*commit
	cut     map[object.ID]bool // the repository's shallow commits
	left    int                // commits that may still be read
}

func newHistory(ctx context.Context, objects *object.Store, shallow []object.ID) *history {
	return &history{ctx: ctx, objects: objects, known: map[object.ID]*commit{}, cut: setOf(shallow), left: maxCommits}
}

func setOf(ids []object.ID) map[object.ID]bool {
	set := make(map[object.ID]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// node returns a commit, which may not be loaded.
func (h *history) node(id object.ID) *commit {
	c := h.known[id]
	if c == nil {
		c = &commit{id: id}
		h.known[id] = c
	}
	return c
}

// load reads a commit. The parents of the repository's shallow commits are left out.
func (h *history) load(c *commit) error {
	if c.flags&loaded != 0 {
		return nil
	}
	if h.left--; h.left < 0 {
		return refusef("the history is too long to be served: use --depth")
	}
	if h.left%64 == 0 && h.ctx.Err() != nil {
		return context.Cause(h.ctx)
	}
	header, err := h.objects.CommitHeader(c.id)
	switch {
	case errors.Is(err, object.ErrNotFound), errors.Is(err, object.ErrNoCommit):
		c.flags |= loaded | absent
		return nil
	case err != nil:
		return object.Corruptf("read history: %w", err)
	}
	c.flags |= loaded
	c.tree, c.date = header.Tree, header.Date
	if h.cut[c.id] {
		return nil
	}
	c.parents = make([]*commit, len(header.Parents))
	for i, parent := range header.Parents {
		c.parents[i] = h.node(parent)
	}
	return nil
}

// commitOf returns the commit that an ID names, directly or by a tag, loaded. It returns nil if there is none.
func (h *history) commitOf(id object.ID) (*commit, error) {
	c := h.node(id)
	if err := h.load(c); err != nil {
		return nil, err
	}
	if c.flags&absent == 0 {
		return c, nil
	}
	target, err := h.objects.Commit(id)
	switch {
	case errors.Is(err, object.ErrNotFound), errors.Is(err, object.ErrNoCommit):
		return nil, nil
	case err != nil:
		return nil, object.Corruptf("read history: %w", err)
	}
	c = h.node(target.Hash)
	return c, h.load(c)
}

// ancestors returns commits and what is reachable from them, as far as it is in: the set, and a list without order.
func (h *history) ancestors(from []*commit, in func(*commit) bool) (set map[*commit]bool, list []*commit, err error) {
	set = map[*commit]bool{}
	add := func(commits []*commit) error {
		for _, c := range commits {
			if err := h.load(c); err != nil {
				return err
			}
			if !set[c] && in(c) {
				set[c] = true
				list = append(list, c)
			}
		}
		return nil
	}
	if err := add(from); err != nil {
		return nil, nil, err
	}
	for i := 0; i < len(list); i++ { // it grows
		if err := add(list[i].parents); err != nil {
			return nil, nil, err
		}
	}
	return set, list, nil
}

// reach finds commits that are reachable from a set of commits, the newest ones first.
type reach struct {
	*history
	queue byDate
}

// add adds a commit to those that others are reached from.
func (r *reach) add(c *commit) error {
	if c.flags&visible != 0 {
		return nil
	}
	if err := r.load(c); err != nil {
		return err
	}
	if c.flags&absent == 0 {
		c.flags |= visible
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
		if c := r.known[id]; c != nil && c.flags&visible != 0 {
			found[id] = true
		} else {
			missing[id] = true
		}
	}
	for ; len(missing) > 0 && len(r.queue) > 0 && limit > 0; limit-- {
		c := heap.Pop(&r.queue).(*commit)
		for _, parent := range c.parents {
			if err := r.add(parent); err != nil {
				return nil, err
			}
			if missing[parent.id] && parent.flags&visible != 0 {
				found[parent.id] = true
				delete(missing, parent.id)
			}
		}
	}
	return found, nil
}

// difference has the commits that a client lacks.
type difference struct {
	commits []*commit // newest first
	edges   []*commit // commits that the client has: first those that commits are based on, then the newest ones
}

// paint is a walk from wants and haves, from the newest commit to the oldest.
type paint struct {
	*history
	wantCut, haveCut map[object.ID]bool // commits whose parents are not followed
	queue            byDate
	open             int // queued commits whose parents may not be known as held
	visited          []*commit
}

// without returns the commits reachable from wants and not from haves. It may return a few that are reachable
// from haves if dates in the history are wrong. wantCut and haveCut are commits without parents for wants and
// for haves.
func (h *history) without(wants, haves []*commit, wantCut, haveCut map[object.ID]bool) (difference, error) {
	p := &paint{history: h, wantCut: wantCut, haveCut: haveCut}
	for _, c := range haves {
		if err := p.add(c, held); err != nil {
			return difference{}, err
		}
	}
	for _, c := range wants {
		if err := p.add(c, wanted); err != nil {
			return difference{}, err
		}
	}
	if err := p.run(); err != nil {
		return difference{}, err
	}
	return p.result(haves), nil
}

func (p *paint) add(c *commit, as flags) error {
	if c.flags&as == as {
		return nil
	}
	if err := p.load(c); err != nil {
		return err
	}
	if c.flags&absent != 0 {
		if as == held {
			return nil // the client may have more than the store
		}
		return object.Corruptf("read history: commit %s is missing", c.id)
	}
	visited := c.flags&(wanted|held) != 0 && c.flags&queued == 0
	c.flags |= as
	if c.flags&queued == 0 {
		c.flags |= queued
		heap.Push(&p.queue, c)
	}
	p.count(c, c.flags&held == 0 || visited)
	return nil
}

// count counts a commit as open, or not.
func (p *paint) count(c *commit, isOpen bool) {
	switch {
	case isOpen && c.flags&open == 0:
		p.open++
		c.flags |= open
	case !isOpen && c.flags&open != 0:
		p.open--
		c.flags &^= open
	}
}

func (p *paint) run() error {
	for p.open > 0 {
		c := heap.Pop(&p.queue).(*commit)
		c.flags &^= queued
		p.count(c, false)
		if c.flags&held == 0 {
			p.visited = append(p.visited, c)
		}
		for _, parent := range c.parents {
			if c.flags&held != 0 && !p.haveCut[c.id] {
				if err := p.add(parent, held); err != nil {
					return err
				}
			}
			if c.flags&wanted != 0 && !p.wantCut[c.id] && parent.flags&held == 0 {
				if err := p.add(parent, wanted); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (p *paint) result(haves []*commit) (d difference) {
	edges := map[*commit]bool{}
	addEdge := func(c *commit) {
		if c.flags&held != 0 && !edges[c] {
			edges[c] = true
			d.edges = append(d.edges, c)
		}
	}
	for _, c := range p.visited {
		if c.flags&held != 0 {
			continue
		}
		d.commits = append(d.commits, c)
		for _, parent := range c.parents {
			addEdge(parent)
		}
	}
	for _, c := range slices.SortedFunc(slices.Values(haves), func(a, b *commit) int {
		return cmp.Compare(b.date, a.date)
	}) {
		addEdge(c)
	}
	return d
}

// satisfies reports whether each want has a commit that the client has among its ancestors, as far as the
// walk that returned d has found.
func (d difference) satisfies(wants []*commit) bool {
	for i := len(d.commits) - 1; i >= 0; i-- {
		c := d.commits[i]
		for _, parent := range c.parents {
			if parent.flags&(held|satisfied) != 0 {
				c.flags |= satisfied
			}
		}
	}
	for _, c := range wants {
		if c.flags&(held|satisfied) == 0 {
			return false
		}
	}
	return true
}

// byDate is a heap with the newest commit first.
type byDate []*commit

func (q byDate) Len() int           { return len(q) }
func (q byDate) Less(i, j int) bool { return q[i].date > q[j].date }
func (q byDate) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *byDate) Push(c any)        { *q = append(*q, c.(*commit)) }
func (q *byDate) Pop() any {
	last := len(*q) - 1
	c := (*q)[last]
	*q = (*q)[:last]
	return c
}
