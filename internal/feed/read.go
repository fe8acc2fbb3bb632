package feed

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base32"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed read.lua
	readSource string
	readScript = redis.NewScript(readSource)
)

const (
	epochLength = 16        // characters
	readEntries = 100       // entries per read
	readBytes   = 256 << 10 // size of the entries after which a read ends
)

// Where to read from, besides the ID of an entry.
const (
	atEnd   = ""
	atStart = "-"
)

// page is what read.lua returns.
type page struct {
	end     position // of the stream
	removed int64    // entries removed from the stream; -1 if unknown
	gone    bool
	entries []stored
}

// stored is a stored result.
type stored struct {
	id      entryID
	payload string
}

// readAt reads the results after the entry at, which is the entry of a position, atEnd or atStart.
func (s *source) readAt(ctx context.Context, at string, from position) (page, error) {
	random := make([]byte, 10)
	_, _ = rand.Read(random) // never fails
	reply, err := readScript.Run(ctx, s.feed.cfg.Redis, []string{s.results, s.epochKey},
		at, from.added, from.epoch, base32.StdEncoding.EncodeToString(random), readEntries, readBytes).Slice()
	if err != nil {
		return page{}, fmt.Errorf("read results: %w", err)
	}
	p, ok := parsePage(reply)
	if !ok {
		return page{}, errReply
	}
	return p, nil
}

var (
	errReply = errors.New("read results: read.lua: unexpected reply")
	errGone  = errors.New("results after this position are no longer kept")
)

func parsePage(reply []any) (p page, ok bool) {
	if len(reply) != 6 {
		return page{}, false
	}
	var texts [5]string
	for i := range texts {
		if texts[i], ok = reply[i].(string); !ok {
			return page{}, false
		}
	}
	p.gone, p.end.epoch = texts[0] != "ok", texts[1]
	if p.end.entry, ok = parseEntry(texts[2]); !ok {
		return page{}, false
	}
	added, err := strconv.ParseInt(texts[3], 10, 64)
	removed, err2 := strconv.ParseInt(texts[4], 10, 64)
	p.end.added, p.removed = added, removed
	list, _ := reply[5].([]any)
	for i := 0; i+1 < len(list); i += 2 {
		id, _ := list[i].(string)
		payload, _ := list[i+1].(string)
		at, ok := parseEntry(id)
		if !ok {
			return page{}, false
		}
		p.entries = append(p.entries, stored{at, payload})
	}
	return p, errors.Join(err, err2) == nil
}

// Start is where a stream begins. The zero Start is the end of the results: only new ones follow.
type Start struct {
	Cursor string // after this one, as [Cursor.String] returns it
	Oldest bool   // with the oldest result that is kept; ignored with a Cursor
}

// Locate returns the cursor of a start. It returns [ErrMalformed], a [GoneError], or an error of Redis. A
// cell of the cursor that does not answer in time is left as it is while others answer: the stream has its
// results, or that they are gone, once it does.
func (f *Feed) Locate(ctx context.Context, start Start) (Cursor, error) {
	var from Cursor
	if start.Cursor != "" {
		var err error
		if from, err = parseCursor(start.Cursor); err != nil {
			return nil, err
		}
	}
	sources := f.present()
	if from.hasOther(sources) && f.cfg.Refresh != nil {
		if err := f.cfg.Refresh(ctx); err != nil {
			return nil, err
		}
		sources = f.present()
	}
	to, ends, answered := Cursor{}, Cursor{}, 0
	gone := from.hasOther(sources) // perhaps with results after the cursor
	var failed error
	for _, s := range sources {
		at, read, err := s.locate(ctx, start, from, len(sources) > 1)
		p, ok := from[s.Cell]
		switch {
		case err == nil:
			answered++
			to[s.Cell], ends[s.Cell] = at, read.end
			gone = gone || read.gone
		case ok:
			to[s.Cell], ends[s.Cell], failed = p, p, err
		default:
			return nil, err
		}
	}
	switch {
	case answered == 0:
		return nil, failed
	case gone:
		return nil, &GoneError{ends}
	}
	return to, nil
}

// hasOther reports whether the cursor has a position in a cell that is none of the sources.
func (c Cursor) hasOther(sources []*source) bool {
	for cell := range c {
		if !slices.ContainsFunc(sources, func(s *source) bool { return s.Cell == cell }) {
			return true
		}
	}
	return false
}

// cellTimeout is how long to wait for one of several cells.
const cellTimeout = time.Second

// locate returns where a stream begins in a source, one of several or the only one, and what was read there. from is
// nil without a cursor. A cell that is not in the cursor was added later, so its results are read from the first on.
func (s *source) locate(
	ctx context.Context, start Start, from Cursor, several bool,
) (at position, read page, err error) {
	if several {
		limited, cancel := context.WithTimeout(ctx, cellTimeout)
		defer cancel()
		ctx = limited
	}
	p, ok := from[s.Cell]
	switch {
	case from == nil && !start.Oldest:
		read, err = s.readAt(ctx, atEnd, position{})
		return read.end, read, err
	case ok:
		read, err = s.readAt(ctx, p.entry.String(), p)
		return p, read, err
	}
	read, err = s.readAt(ctx, atStart, position{})
	read.gone = from != nil && read.removed > 0
	if read.end.entry == (entryID{}) { // the stream is empty
		return read.end, read, err
	}
	return position{epoch: read.end.epoch, added: read.removed}, read, err
}
