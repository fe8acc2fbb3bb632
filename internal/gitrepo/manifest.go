package gitrepo

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"os"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
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
	hash plumbing.Hash
	raw  string // its entry in the index
}

const (
	manifestHead = 12 // bytes: "DIRC", version, number of entries
	entryHead    = 62 // bytes of an entry before its path
	longPath     = 0xfff
)

var errBadManifest = errors.New("not a Git index of version 2, or damaged")

// readManifest reads a manifest that writeManifest wrote. Git's own checksum says whether it is whole.
func readManifest(path string) (manifest, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	body := len(content) - sha1.Size
	if body < manifestHead || string(content[:8]) != "DIRC\x00\x00\x00\x02" {
		return nil, errBadManifest
	}
	if sum := sha1.Sum(content[:body]); !bytes.Equal(sum[:], content[body:]) {
		return nil, errBadManifest
	}
	count := binary.BigEndian.Uint32(content[8:])
	if int64(count) > int64(body/entryHead) {
		return nil, errBadManifest
	}
	text := string(content[manifestHead:body])
	m := make(manifest, 0, count)
	for range count {
		entry, rest, ok := cutTracked(text)
		if !ok {
			return nil, errBadManifest
		}
		m, text = append(m, entry), rest
	}
	return m, nil
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
		fileType(t.mode) == st.Mode&(unix.S_IFMT|0o100)
}

// fileType returns the type and owner's execute bit that a file of this mode has on disk.
func fileType(mode filemode.FileMode) uint32 {
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
	size := manifestHead + sha1.Size
	for _, t := range m {
		size += len(t.raw)
	}
	content := make([]byte, manifestHead, size)
	copy(content, "DIRC\x00\x00\x00\x02")
	binary.BigEndian.PutUint32(content[8:], uint32(len(m)))
	for _, t := range m {
		content = append(content, t.raw...)
	}
	sum := sha1.Sum(content)
	return append(content, sum[:]...)
}
