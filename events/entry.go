package events

import (
	"strconv"
	"strings"
)

// EntryAfter reports whether the stream entry with id a was added after the one with id b. Both are of
// the same stream; "" and whatever else is no id is after none, and none is after it.
func EntryAfter(a, b string) bool {
	ams, aseq, aok := parseEntryID(a)
	bms, bseq, bok := parseEntryID(b)
	if !aok || !bok {
		return false
	}
	return ams > bms || ams == bms && aseq > bseq
}

func parseEntryID(id string) (ms, seq uint64, ok bool) {
	head, tail, found := strings.Cut(id, "-")
	ms, err := strconv.ParseUint(head, 10, 64)
	if err != nil || !found {
		return 0, 0, false
	}
	seq, err = strconv.ParseUint(tail, 10, 64)
	return ms, seq, err == nil
}
