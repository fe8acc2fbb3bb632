package feed

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base32"
	"errors"
	"fmt"
	"strconv"

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
	end     Position // of the stream
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
func (f *Feed) readAt(ctx context.Context, at string, from Position) (page, error) {
	random := make([]byte, 10)
	_, _ = rand.Read(random) // never fails
	reply, err := readScript.Run(ctx, f.cfg.Redis, []string{f.results, f.epochKey},
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

var errReply = errors.New("read results: read.lua: unexpected reply")

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
	Cursor string // after this position, as [Position.String] returns it
	Oldest bool   // with the oldest result that is kept; ignored with a Cursor
}

// Locate returns the position of a start. It returns [ErrMalformed], a [GoneError], or an error of Redis.
func (f *Feed) Locate(ctx context.Context, start Start) (Position, error) {
	at, from := atEnd, Position{}
	if start.Cursor != "" {
		var err error
		if from, err = ParsePosition(start.Cursor); err != nil {
			return Position{}, err
		}
		at = from.Entry()
	}
	p, err := f.readAt(ctx, at, from)
	switch {
	case err != nil:
		return Position{}, err
	case p.gone:
		return Position{}, &GoneError{p.end}
	case start.Cursor != "":
		return from, nil
	case start.Oldest && p.end.entry != (entryID{}):
		return Position{epoch: p.end.epoch, added: p.removed}, nil // before the first entry
	}
	return p.end, nil
}
