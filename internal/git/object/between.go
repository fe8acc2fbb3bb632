package object

import (
	"bytes"
	"context"
	"math"
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
	h := NewHistory(ctx, o, shallow, math.MaxInt)
	h.maxParents = maxParents
	w, from, to := &walk{History: h, exact: true}, h.Node(older), h.Node(newer)
	if err := w.add(to, Wanted); err != nil {
		return Range{}, err
	}
	if to.Flags&Absent != 0 {
		return Range{}, Corruptf("read history: commit %s is missing", newer)
	}
	if err := w.add(from, Held); err != nil {
		return Range{}, err
	}
	if err := w.run(limit); err != nil {
		return Range{}, err
	}
	r = Range{Commits: []ID{newer}, Partial: w.lost || w.open > 0, Descends: from.Flags&Wanted != 0}
	r.Known = r.Descends || !r.Partial
	if from.Flags&Absent != 0 {
		return r, nil
	}
	for _, c := range w.result() {
		if c != to {
			r.Commits = append(r.Commits, c.ID)
		}
	}
	return r, nil
}

// maxParents is how many parents of a commit are followed. No known merge has a tenth of them, but a commit
// of 64 MiB can name a million.
const maxParents = 1000
