package object

import (
	"container/heap"
	"context"
	"errors"
	"math"
)

// History is the graph of the commits of a store, read as far as needed. It is not safe for concurrent use.
type History struct {
	Known map[ID]*Node
	Cut   map[ID]bool // commits some of whose parents are left out

	ctx        context.Context
	objects    *Store
	left       int // commits that may still be read
	maxParents int // of a commit
}

// Node is a commit of a history. Its other fields are set once it is loaded.
type Node struct {
	ID, Tree ID
	Parents  []*Node
	Date     int64 // of the committer, in Unix time
	Depth    int32 // for callers
	Flags    Flags
}

// Flags are what is known of a commit.
type Flags uint8

// The flags. [FirstFlag] and the next one are for callers.
const (
	loaded    Flags = 1 << iota
	Absent          // not in the store, or no commit
	Wanted          // reachable from the wants of a walk
	Held            // reachable from its haves
	queued          // in its queue
	open            // counted by it
	FirstFlag       // for callers

	wantedAndHeld = Wanted | Held
)

// ErrLongHistory means that a history has more commits than may be read.
var ErrLongHistory = errors.New("the history is too long")

// NewHistory returns the history of a store without the parents of shallow commits. It reads at most limit commits.
func NewHistory(ctx context.Context, objects *Store, shallow []ID, limit int) *History {
	h := &History{
		Known: map[ID]*Node{}, Cut: map[ID]bool{}, ctx: ctx, objects: objects, left: limit, maxParents: math.MaxInt,
	}
	for _, id := range shallow {
		h.Cut[id] = true
	}
	return h
}

// Node returns a commit, which may not be loaded.
func (h *History) Node(id ID) *Node {
	c := h.Known[id]
	if c == nil {
		c = &Node{ID: id}
		h.Known[id] = c
	}
	return c
}

// Load reads a commit.
func (h *History) Load(c *Node) error {
	if c.Flags&loaded != 0 {
		return nil
	}
	if h.left--; h.left < 0 {
		return ErrLongHistory
	}
	if h.left%64 == 0 && h.ctx.Err() != nil {
		return context.Cause(h.ctx)
	}
	header, err := h.objects.CommitHeader(c.ID)
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrNoCommit):
		c.Flags |= loaded | Absent
		return nil
	case err != nil:
		return Corruptf("read history: %w", err)
	}
	c.Flags |= loaded
	c.Tree, c.Date = header.Tree, header.Date
	if h.Cut[c.ID] {
		return nil
	}
	if len(header.Parents) > h.maxParents {
		h.Cut[c.ID], header.Parents = true, header.Parents[:h.maxParents]
	}
	c.Parents = make([]*Node, len(header.Parents))
	for i, parent := range header.Parents {
		c.Parents[i] = h.Node(parent)
	}
	return nil
}

// CommitOf returns the commit that an ID names, directly or by a tag, loaded. It returns nil if there is none.
func (h *History) CommitOf(id ID) (*Node, error) {
	c := h.Node(id)
	if err := h.Load(c); err != nil {
		return nil, err
	}
	if c.Flags&Absent == 0 {
		return c, nil
	}
	target, err := h.objects.Commit(id)
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrNoCommit):
		return nil, nil
	case err != nil:
		return nil, Corruptf("read history: %w", err)
	}
	c = h.Node(target.Hash)
	return c, h.Load(c)
}

// Ancestors returns commits and what is reachable from them, as far as it is in: the set, and a list without order.
func (h *History) Ancestors(from []*Node, in func(*Node) bool) (set map[*Node]bool, list []*Node, err error) {
	set = map[*Node]bool{}
	add := func(commits []*Node) error {
		for _, c := range commits {
			if err := h.Load(c); err != nil {
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
		if err := add(list[i].Parents); err != nil {
			return nil, nil, err
		}
	}
	return set, list, nil
}

// Without returns the commits reachable from wants and not from haves, newest first. It may return a few that
// are reachable from haves if dates in the history are wrong. wantCut and haveCut are commits without parents for
// wants and for haves.
func (h *History) Without(wants, haves []*Node, wantCut, haveCut map[ID]bool) ([]*Node, error) {
	w := &walk{History: h, wantCut: wantCut, haveCut: haveCut}
	for _, c := range haves {
		if err := w.add(c, Held); err != nil {
			return nil, err
		}
	}
	for _, c := range wants {
		if err := w.add(c, Wanted); err != nil {
			return nil, err
		}
	}
	err := w.run(math.MaxInt)
	return w.result(), err
}

// walk visits commits from the newest to the oldest, and passes on to their parents whether they are wanted or held.
type walk struct {
	*History
	wantCut, haveCut map[ID]bool // commits whose parents are not followed
	exact            bool        // the result does not depend on dates, which takes longer; commits may be absent
	queue            ByDate
	open             int     // queued commits whose visit may change the result
	visited          []*Node // commits that were not held
	lost             bool    // exact: a commit that is not both wanted and held is absent, or lacks parents
}

func (w *walk) add(c *Node, as Flags) error {
	if c.Flags&as == as {
		return nil
	}
	if err := w.Load(c); err != nil {
		return err
	}
	visited := c.Flags&wantedAndHeld != 0 && c.Flags&queued == 0
	switch {
	case c.Flags&Absent == 0:
	case w.exact:
		c.Flags |= as
		w.lost = w.lost || c.Flags&wantedAndHeld != wantedAndHeld
		return nil
	case as == Held:
		return nil // the client may have more than the store
	default:
		return Corruptf("read history: commit %s is missing", c.ID)
	}
	c.Flags |= as
	if c.Flags&queued == 0 {
		c.Flags |= queued
		heap.Push(&w.queue, c)
	}
	isDone := c.Flags&Held != 0 && (!w.exact || c.Flags&Wanted != 0)
	w.count(c, !isDone || visited) // the parents of a visited commit must hear of it
	return nil
}

// count counts a commit as open, or not.
func (w *walk) count(c *Node, isOpen bool) {
	switch {
	case isOpen && c.Flags&open == 0:
		w.open++
		c.Flags |= open
	case !isOpen && c.Flags&open != 0:
		w.open--
		c.Flags &^= open
	}
}

// run visits at most limit commits.
func (w *walk) run(limit int) error {
	for ; w.open > 0 && limit > 0; limit-- {
		c := heap.Pop(&w.queue).(*Node)
		c.Flags &^= queued
		w.count(c, false)
		if c.Flags&Held == 0 {
			w.visited = append(w.visited, c)
		}
		w.lost = w.lost || w.Cut[c.ID] && c.Flags&wantedAndHeld != wantedAndHeld
		for _, parent := range c.Parents {
			as := c.Flags & wantedAndHeld
			if w.haveCut[c.ID] {
				as &^= Held
			}
			if w.wantCut[c.ID] || !w.exact && (parent.Flags|as)&Held != 0 {
				as &^= Wanted
			}
			if as == 0 {
				continue
			}
			if err := w.add(parent, as); err != nil {
				return err
			}
		}
	}
	return nil
}

// result returns the visited commits that did not turn out to be held.
func (w *walk) result() (commits []*Node) {
	for _, c := range w.visited {
		if c.Flags&Held == 0 {
			commits = append(commits, c)
		}
	}
	return commits
}

// ByDate is a heap with the newest commit first.
type ByDate []*Node

func (q ByDate) Len() int           { return len(q) }
func (q ByDate) Less(i, j int) bool { return q[i].Date > q[j].Date }
func (q ByDate) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements [heap.Interface].
func (q *ByDate) Push(c any) { *q = append(*q, c.(*Node)) }

// Pop implements [heap.Interface].
func (q *ByDate) Pop() any {
	last := len(*q) - 1
	c := (*q)[last]
	*q = (*q)[:last]
	return c
}
