package events

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// EntryAfter reports whether the stream entry with ID a was added after the one with ID b. Both must be IDs
// of the same stream. It returns false if either is not an entry ID.
func EntryAfter(a, b string) bool {
	ams, aseq, aok := ParseEntryID(a)
	bms, bseq, bok := ParseEntryID(b)
	if !aok || !bok {
		return false
	}
	return ams > bms || ams == bms && aseq > bseq
}

// EntryTime returns when the stream entry was added, in UTC, by Redis' clock unless the publisher chose the
// ID. It returns the zero time if id is not an entry ID or contains no time.
func EntryTime(id string) time.Time {
	ms, _, ok := ParseEntryID(id)
	if !ok || ms == 0 || ms > math.MaxInt64 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms)).UTC()
}

// ParseEntryID splits the ID of a stream entry, such as "1795223511284-0", into ms since 1970 and sequence number.
func ParseEntryID(id string) (ms, seq uint64, ok bool) {
	head, tail, found := strings.Cut(id, "-")
	ms, err := strconv.ParseUint(head, 10, 64)
	if err != nil || !found {
		return 0, 0, false
	}
	seq, err = strconv.ParseUint(tail, 10, 64)
	return ms, seq, err == nil
}
