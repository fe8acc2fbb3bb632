package feed

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"lockstep/events"
)

// position is a place in the stream of results of a cell: after an entry.
type position struct {
	epoch string // of the deployment's stream
	entry entryID
	added int64 // entries added to the stream up to this one; -1 if Redis does not count them
}

// Cursor is a place in the results: the position in the stream of each cell, by the cell's name. That of a
// deployment without cells is "". It is not changed once it is shared.
type Cursor map[string]position

// cursorVersion is the first field of a cursor.
const cursorVersion = "1"

// String returns the opaque text of a cursor: the version, then the fields of the only position, or the name
// and the fields of each.
func (c Cursor) String() string {
	var text strings.Builder
	text.WriteString(cursorVersion)
	for _, cell := range slices.Sorted(maps.Keys(c)) {
		if cell != "" {
			text.WriteString(" " + cell)
		}
		p := c[cell]
		fmt.Fprintf(&text, " %s %s %d", p.epoch, p.entry, p.added)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(text.String()))
}

// Entry returns the ID of the entry of a cell, "" if the cursor has none.
func (c Cursor) Entry(cell string) string {
	if p, ok := c[cell]; ok && p.entry != (entryID{}) {
		return p.entry.String()
	}
	return ""
}

// with returns the cursor with another position in one cell.
func (c Cursor) with(cell string, at position) Cursor {
	if _, ok := c[cell]; len(c) == 0 || ok && len(c) == 1 {
		return Cursor{cell: at}
	}
	changed := maps.Clone(c)
	changed[cell] = at
	return changed
}

// ErrMalformed means that a text is not a cursor.
var ErrMalformed = errors.New("cursor: want the id of an event of /api/v1/results")

const maxCursor = 64 << 10 // bytes; each cell has 60 to 150

// parseCursor parses the text of a cursor. It returns [ErrMalformed] if it is none.
func parseCursor(text string) (Cursor, error) {
	if len(text) > maxCursor {
		return nil, ErrMalformed
	}
	decoded, err := base64.RawURLEncoding.Strict().DecodeString(text)
	fields := strings.Split(string(decoded), " ")
	if err != nil || len(fields) < 2 || fields[0] != cursorVersion {
		return nil, ErrMalformed
	}
	c := Cursor{}
	const ofCell = 4 // fields
	switch fields = fields[1:]; {
	case len(fields) == ofCell-1:
		fields = append([]string{""}, fields...)
	case len(fields)%ofCell != 0:
		return nil, ErrMalformed
	}
	for cell := range slices.Chunk(fields, ofCell) {
		entry, ok := parseEntry(cell[2])
		added, err := strconv.ParseInt(cell[3], 10, 64)
		if !ok || err != nil || added < -1 || len(cell[1]) != epochLength {
			return nil, ErrMalformed
		}
		c[cell[0]] = position{cell[1], entry, added}
	}
	if c.String() != text {
		return nil, ErrMalformed
	}
	return c, nil
}

// GoneError means that results after a position are no longer kept, or that it belongs to another stream.
type GoneError struct {
	End Cursor // the end of the results: list what there is, then go on from here
}

// Error implements error.
func (e *GoneError) Error() string {
	return "results after this cursor are no longer kept, or it belongs to another deployment: " +
		"list the repositories, and continue from the cursor in this response"
}

// entryID is the ID of a stream entry.
type entryID struct{ ms, seq uint64 }

func parseEntry(id string) (entryID, bool) {
	ms, seq, ok := events.ParseEntryID(id)
	return entryID{ms, seq}, ok
}

func (e entryID) String() string { return fmt.Sprintf("%d-%d", e.ms, e.seq) }

func (e entryID) compare(other entryID) int {
	return cmp.Or(cmp.Compare(e.ms, other.ms), cmp.Compare(e.seq, other.seq))
}
