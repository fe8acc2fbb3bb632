package fsck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"

	"github.com/go-git/go-git/v5/plumbing/filemode"

	"lockstep/internal/git/object"
)

var errIndex = errors.New("not a Git index of version 2, 3 or 4, or damaged")

// readIndex returns the entries of a Git index, whose checksum it verifies. Git may have written it.
func readIndex(path string, format object.Format) ([]object.TreeEntry, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	body := len(content) - format.Size()
	if body < 12 || string(content[:4]) != "DIRC" {
		return nil, errIndex
	}
	sum := format.NewSum()
	sum.Write(content[:body])
	if !bytes.Equal(sum.Sum(nil), content[body:]) {
		return nil, errIndex
	}
	r := indexReader{rest: content[12:body], version: binary.BigEndian.Uint32(content[4:]), idSize: format.Size()}
	if r.version < 2 || r.version > 4 {
		return nil, errIndex
	}
	var entries []object.TreeEntry
	for range binary.BigEndian.Uint32(content[8:]) {
		entry, ok := r.entry()
		if !ok {
			return nil, errIndex
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// indexReader decodes the entries of an index.
type indexReader struct {
	rest    []byte
	version uint32
	idSize  int
	name    string // of the previous entry
}

const statSize = 40 // bytes of an entry before its object ID

func (r *indexReader) entry() (e object.TreeEntry, ok bool) {
	header := statSize + r.idSize + 2
	if len(r.rest) < header {
		return e, false
	}
	if flags := binary.BigEndian.Uint16(r.rest[header-2:]); r.version > 2 && flags&0x4000 != 0 {
		header += 2 // extended flags
	}
	if len(r.rest) < header {
		return e, false
	}
	e.Mode = filemode.FileMode(binary.BigEndian.Uint32(r.rest[24:]))
	e.Hash = object.IDOf(r.rest[statSize : statSize+r.idSize])
	text, kept := r.rest[header:], 0
	if r.version == 4 { // names the number of bytes to drop from the previous name
		drop, n := dropped(text)
		if n == 0 || drop > len(r.name) {
			return e, false
		}
		text, kept = text[n:], len(r.name)-drop
	}
	end := bytes.IndexByte(text, 0)
	if end < 0 {
		return e, false
	}
	e.Name = r.name[:kept] + string(text[:end])
	r.name = e.Name
	next := len(r.rest) - len(text) + end + 1
	if r.version < 4 {
		next = (header + end + 8) &^ 7
	}
	if next > len(r.rest) {
		return e, false
	}
	r.rest = r.rest[next:]
	return e, true
}

// dropped decodes a number as in the distance of an OFS delta, and returns its length; 0 if it is invalid.
func dropped(text []byte) (drop, n int) {
	for n < len(text) && n < 5 {
		b := text[n]
		if n++; n > 1 {
			drop++
		}
		if drop = drop<<7 | int(b&0x7f); b&0x80 == 0 {
			return drop, n
		}
	}
	return 0, 0
}
