package feed

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"lockstep/events"
)

// Position is a place in the stream of results: after an entry.
type Position struct {
	epoch string // of the deployment's stream
	entry entryID
	added int64 // entries added to the stream up to this one; -1 if Redis does not count them
}

// cursorVersion is the first field of a cursor.
const cursorVersion = "1"

// String returns the position as an opaque cursor.
func (p Position) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strings.Join([]string{cursorVersion, p.epoch, p.entry.String(), strconv.FormatInt(p.added, 10)}, " ")))
}

// Entry returns the ID of the entry.
func (p Position) Entry() string { return p.entry.String() }

// ErrMalformed means that a text is not a cursor.
var ErrMalformed = errors.New("cursor: want the id of an event of /api/v1/results")

const maxCursor = 300 // bytes

// ParsePosition parses a cursor. It returns [ErrMalformed] if the text is none. A cursor of another version is a position in no stream.
func ParsePosition(cursor string) (Position, error) {
	if len(cursor) > maxCursor {
		return Position{}, ErrMalformed
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	fields := strings.Split(string(text), " ")
	switch {
	case err != nil, len(fields) < 2, strings.Trim(fields[0], "0123456789") != "", fields[0] == "":
		return Position{}, ErrMalformed
	case fields[0] != cursorVersion:
		return Position{epoch: "version " + fields[0]}, nil
	case len(fields) != 4 || len(fields[1]) != epochLength:
		return Position{}, ErrMalformed
	}
	p := Position{epoch: fields[1]}
	var ok bool
	p.entry, ok = parseEntry(fields[2])
	p.added, err = strconv.ParseInt(fields[3], 10, 64)
	if !ok || err != nil || p.added < -1 || p.String() != cursor {
		return Position{}, ErrMalformed
	}
	return p, nil
}

// GoneError means that results after a position are no longer kept, or that it belongs to another stream.
type GoneError struct {
	End Position // the end of the stream: list what there is, then go on from here
}

// Error implements error.
func (e *GoneError) Error() string {
	return "results after this cursor are no longer kept, or it belongs to another deployment: list the repositories, and continue from the cursor in this response"
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
