package checkout

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"

	"lockstep/internal/git/object"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"
)

// manifest lists the files of a tree, sorted by path, as they are on disk. It is a Git index of
// version 2, kept in its own bytes: where a file is linked from one tree into the next, so is its entry.
type manifest []tracked

// tracked is a file, link or submodule of a manifest.
type tracked struct {
	path string
	mode filemode.FileMode
	hash object.ID
	raw  string // its entry in the index
}

const (
	manifestHead = 12 // bytes: "DIRC", version, number of entries
	entryHead    = 62 // bytes of an entry before its path
	longPath     = 0xfff
)

// ErrBadManifest means that a tree's index cannot be relied on.
var ErrBadManifest = errors.New("not a Git index of version 2, or damaged")

// readManifest reads a manifest that was written by encode. Git's own checksum says whether it is whole.
func readManifest(path string) (manifest, error) {
	text, count, err := readEntries(path)
	if err != nil {
		return nil, err
	}
	m := make(manifest, 0, count)
	for range count {
		entry, rest, ok := cutTracked(text)
		if !ok {
			return nil, ErrBadManifest
		}
		m, text = append(m, entry), rest
	}
	return m, nil
}

// readEntries reads the entries of a manifest, one behind the other.
func readEntries(path string) (text string, count int, err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", 0, err
	}
	count, err = countEntries(content)
	if err != nil {
		return "", 0, err
	}
	body := len(content) - sha1.Size
	if sum := sha1.Sum(content[:body]); !bytes.Equal(sum[:], content[body:]) {
		return "", 0, ErrBadManifest
	}
	return string(content[manifestHead:body]), count, nil
}

// countEntries reads the head of a manifest, of which more may follow.
func countEntries(head []byte) (int, error) {
	if len(head) < manifestHead+sha1.Size || string(head[:8]) != "DIRC\x00\x00\x00\x02" {
		return 0, ErrBadManifest
	}
	return int(binary.BigEndian.Uint32(head[8:])), nil
}

// sizeOfManifest returns how many entries a manifest has, without reading them.
func sizeOfManifest(path string) (int, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	head := make([]byte, manifestHead+sha1.Size)
	if _, err := io.ReadFull(file, head); err != nil {
		return 0, ErrBadManifest
	}
	count, err := countEntries(head)
	if err == nil && int64(count) > info.Size()/entryHead {
		err = ErrBadManifest
	}
	return count, err
}

// amend returns the manifest at path, encoded, with what has been written in the place of what differs. It
// also says how many bytes all files have. What is not written any more is left out.
func amend(path string, found []difference, written map[string]tracked) (content []byte, bytes int64, err error) {
	text, count, err := readEntries(path)
	if err != nil {
		return nil, 0, err
	}
	e := newEncoder(len(text) + 128*len(found))
	put := func(t tracked) {
		if !t.isSkipped() {
			e.add(t)
			bytes += int64(t.size())
		}
	}
	for range count {
		t, rest, ok := cutTracked(text)
		if !ok {
			return nil, 0, ErrBadManifest
		}
		text = rest
		for len(found) > 0 && found[0].path < t.path {
			put(written[found[0].path])
			found = found[1:]
		}
		if len(found) > 0 && found[0].path == t.path {
			continue
		}
		put(t)
	}
	for _, d := range found {
		put(written[d.path])
	}
	return e.finish(), bytes, nil
}

// cutTracked reads the first entry of text.
func cutTracked(text string) (entry tracked, rest string, ok bool) {
	if len(text) <= entryHead {
		return tracked{}, "", false
	}
	length := strings.IndexByte(text[entryHead:], 0)
	size := trackedSize(length)
	if length <= 0 || size > len(text) {
		return tracked{}, "", false
	}
	entry = tracked{
		path: text[entryHead : entryHead+length],
		mode: filemode.FileMode(number(text[24:])),
		raw:  text[:size],
	}
	copy(entry.hash[:], text[40:60])
	return entry, text[size:], true
}

// trackedSize is the length of the entry of a path: a multiple of 8, with one NUL at least.
func trackedSize(path int) int { return (entryHead + path + 8) &^ 7 }

func number(text string) uint32 {
	return uint32(text[0])<<24 | uint32(text[1])<<16 | uint32(text[2])<<8 | uint32(text[3])
}

// isSkipped reports whether there is nothing on disk.
func (t tracked) isSkipped() bool { return t.raw == "" }

// size is how long the file was, modulo 2^32.
func (t tracked) size() uint32 {
	if t.isSkipped() {
		return 0
	}
	return number(t.raw[36:])
}

// isAsWritten reports whether a file is the one that the entry was made for, and not changed since.
func (t tracked) isAsWritten(st unix.Stat_t) bool {
	return number(t.raw[8:]) == uint32(st.Mtim.Sec) && number(t.raw[12:]) == uint32(st.Mtim.Nsec) &&
		number(t.raw[20:]) == uint32(st.Ino) && number(t.raw[36:]) == uint32(st.Size) &&
		FileType(t.mode) == st.Mode&(unix.S_IFMT|0o100)
}

// FileType returns the type and owner's execute bit that a file of this mode has on disk.
func FileType(mode filemode.FileMode) uint32 {
	switch mode {
	case filemode.Symlink:
		return unix.S_IFLNK | 0o100
	case filemode.Executable:
		return unix.S_IFREG | 0o100
	}
	return unix.S_IFREG
}

// describe makes the entry of a file as it is on disk; st is zero for a submodule.
func describe(e entry, st unix.Stat_t) tracked {
	raw := make([]byte, trackedSize(len(e.path)))
	for i, field := range []uint32{
		uint32(st.Ctim.Sec), uint32(st.Ctim.Nsec), uint32(st.Mtim.Sec), uint32(st.Mtim.Nsec),
		uint32(st.Dev), uint32(st.Ino), uint32(e.mode), st.Uid, st.Gid, uint32(st.Size),
	} {
		binary.BigEndian.PutUint32(raw[4*i:], field)
	}
	copy(raw[40:], e.hash[:])
	binary.BigEndian.PutUint16(raw[60:], uint16(min(len(e.path), longPath)))
	copy(raw[entryHead:], e.path)
	return tracked{path: e.path, mode: e.mode, hash: e.hash, raw: string(raw)}
}

// encode returns the manifest as a Git index.
func (m manifest) encode() []byte {
	size := 0
	for _, t := range m {
		size += len(t.raw)
	}
	e := newEncoder(size)
	for _, t := range m {
		e.add(t)
	}
	return e.finish()
}

// manifestEncoder makes a Git index of version 2.
type manifestEncoder struct {
	content []byte
	count   uint32
}

// newEncoder makes room for entries of so many bytes.
func newEncoder(size int) *manifestEncoder {
	e := &manifestEncoder{content: make([]byte, manifestHead, manifestHead+size+sha1.Size)}
	copy(e.content, "DIRC\x00\x00\x00\x02")
	return e
}

// add adds an entry; they come sorted by path.
func (e *manifestEncoder) add(t tracked) {
	e.content = append(e.content, t.raw...)
	e.count++
}

func (e *manifestEncoder) finish() []byte {
	binary.BigEndian.PutUint32(e.content[8:], e.count)
	sum := sha1.Sum(e.content)
	return append(e.content, sum[:]...)
}
