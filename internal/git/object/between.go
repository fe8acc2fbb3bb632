package object

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"strconv"
)

// Raw returns the type and the content of a commit, tag or tree, whose hash it verifies.
func (o *Store) Raw(h ID) (kind string, content []byte, err error) {
	obj, err := o.read(h)
	switch {
	case err != nil:
		return "", nil, err
	case obj.open != nil:
		return "", nil, ErrNoCommit // a large blob
	}
	return obj.Kind.String(), obj.content, nil
}

// dateOf returns the committer's date in the content of a commit, as Unix time; 0 if there is none.
func dateOf(content []byte) int64 {
	for len(content) > 0 && content[0] != '\n' {
		line, rest, _ := bytes.Cut(content, []byte("\n"))
		if bytes.HasPrefix(line, []byte("committer ")) {
			fields := bytes.Fields(line[bytes.LastIndexByte(line, '>')+1:])
			if len(fields) == 0 {
				return 0
			}
			date, err := strconv.ParseInt(string(fields[0]), 10, 64)
			if err != nil {
				return 0
			}
			return date
		}
		content = rest
	}
	return 0
}

// Range is the history of a commit since an older one, as git rev-list older..newer.
type Range struct {
	Commits  []ID // newest first; the newer commit itself is the first, also if there are no others
	Partial  bool // there may be more commits: history is cut off, or too long
	Descends bool // the newer commit descends from the older one, or is it
	Known    bool // whether Descends is known
}

// Between returns the history of newer since older. The parents of shallow commits are missing. It reads at
// most limit commits: those that are in only one of the two histories, and a few of both. If older itself is missing,
// the range has only the newer commit, and is known to descend from older if a commit names that as its parent.
func (o *Store) Between(ctx context.Context, older, newer ID, shallow []ID, limit int) (r Range, err error) {
	defer RecoverCorrupt(&err)
	if older == newer {
		return Range{Commits: []ID{newer}, Descends: true, Known: true}, nil
	}
	w := &walk{objects: o, seen: map[ID]*walked{}, shallow: map[ID]bool{}}
	for _, h := range shallow {
		w.shallow[h] = true
	}
	if err := w.add(newer, ofNewer); err != nil {
		return Range{}, err
	}
	if w.seen[newer].missing {
		return Range{}, Corruptf("read history: commit %s is missing", newer)
	}
	if err := w.add(older, ofOlder); err != nil {
		return Range{}, err
	}
	r, err = w.run(ctx, older, newer, limit)
	if err == nil && w.seen[older].missing {
		return Range{Commits: []ID{newer}, Partial: true, Descends: r.Descends, Known: r.Descends}, nil
	}
	return r, err
}

// Histories that a commit belongs to.
const (
	ofNewer = 1 << iota
	ofOlder
	ofBoth = ofNewer | ofOlder
)

type walked struct {
	id      ID
	date    int64 // Unix time
	parents []ID
	of      int
	queued  bool
	open    bool // counted in walk.open
	missing bool
	cut     bool // it has more parents
	listed  bool // in walk.newest
}

// walk visits commits from the newest to the oldest and passes on to parents which histories they belong to.
type walk struct {
	objects *Store
	seen    map[ID]*walked
	shallow map[ID]bool
	queue   byDate
	open    int // queued commits that do not belong to both histories, or that were visited before they turned out to
	newest  []*walked
	cut     bool // a commit of one history alone lacks its parents
}

// maxParents is how many parents of a commit are followed. No known merge has a tenth of them, but a commit
// that repeats one a million times compresses to kilobytes.
const maxParents = 1000

// add adds a commit to histories.
func (w *walk) add(h ID, of int) error {
	c := w.seen[h]
	if c == nil {
		c = &walked{id: h}
		w.seen[h] = c
		header, err := w.objects.CommitHeader(h)
		switch {
		case errors.Is(err, ErrNotFound):
			c.missing = true
		case err != nil:
			return Corruptf("read history: %w", err)
		}
		c.date, c.parents = header.Date, header.Parents[:min(len(header.Parents), maxParents)]
		c.cut = len(header.Parents) > maxParents
	}
	if c.of|of == c.of {
		return nil
	}
	visited := c.of != 0 && !c.queued
	c.of |= of
	if c.missing {
		w.cut = w.cut || c.of != ofBoth
		return nil
	}
	if !c.queued {
		c.queued = true
		heap.Push(&w.queue, c)
	}
	w.count(c, c.of != ofBoth || visited) // the parents of a visited commit must hear of it
	return nil
}

// count counts a commit as open, or not.
func (w *walk) count(c *walked, open bool) {
	switch {
	case open && !c.open:
		w.open++
	case !open && c.open:
		w.open--
	}
	c.open = open
}

func (w *walk) run(ctx context.Context, older, newer ID, limit int) (Range, error) {
	visits, end := 0, w.seen[older]
	for ; w.open > 0 && visits < limit; visits++ {
		if visits%64 == 0 && ctx.Err() != nil {
			return Range{}, context.Cause(ctx)
		}
		if end.missing && end.of == ofBoth {
			break // nothing else can be known
		}
		c := heap.Pop(&w.queue).(*walked)
		c.queued = false
		w.count(c, false)
		if c.of == ofNewer && !c.listed {
			c.listed = true
			w.newest = append(w.newest, c)
		}
		if w.shallow[c.id] || c.cut {
			w.cut = w.cut || c.of != ofBoth
		}
		if w.shallow[c.id] {
			continue
		}
		for _, parent := range c.parents {
			if err := w.add(parent, c.of); err != nil {
				return Range{}, err
			}
		}
	}
	incomplete := w.cut || w.open > 0
	r := Range{Commits: []ID{newer}, Partial: incomplete}
	r.Descends = end.of&ofNewer != 0
	r.Known = r.Descends || !incomplete
	for _, c := range w.newest {
		if c.id != newer && c.of == ofNewer { // it may have turned out to be in both
			r.Commits = append(r.Commits, c.id)
		}
	}
	return r, nil
}

// byDate is a heap with the newest commit first.
type byDate []*walked

func (q byDate) Len() int           { return len(q) }
func (q byDate) Less(i, j int) bool { return q[i].date > q[j].date }
func (q byDate) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *byDate) Push(c any)        { *q = append(*q, c.(*walked)) }
func (q *byDate) Pop() any {
	last := len(*q) - 1
	c := (*q)[last]
	*q = (*q)[:last]
	return c
}
