package checkout

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path"
	"strings"

	"lockstep/internal/disk"
	"lockstep/internal/git/object"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"
)

// manifest lists the files of a tree as they are on disk, sorted by path. It is stored as a Git index of version 2.
// Entries keep their encoded form: the next tree that links a file copies its entry.
type manifest []tracked

// tracked is a file, link or submodule of a manifest.
type tracked struct {
	path string
	mode filemode.FileMode
	hash object.ID
	raw  string // encoded entry of the index; empty if the file was skipped

	inPart bool // it belongs to a submodule, at any depth
	linked bool // only in a build: the file is a hard link to a [LargeFile]
}

const (
	manifestMagic  = "DIRC\x00\x00\x00\x02" // and the version
	manifestHeader = 12                     // bytes: magic, number of entries
	idOffset       = 40                     // of the object ID in an entry, in bytes
	longPath       = 0xfff
)

// entryHeader returns the number of bytes of an entry before its path.
func entryHeader(f object.Format) int { return idOffset + f.Size() + 2 }

// ErrBadManifest means that a tree's manifest is damaged.
var ErrBadManifest = errors.New("not a Git index of version 2, or damaged")

// readManifest reads a manifest and verifies its checksum.
func readManifest(path string, format object.Format) (manifest, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	body := len(content) - format.Size()
	if body < manifestHeader {
		return nil, ErrBadManifest
	}
	count, err := countEntries(content)
	if err != nil {
		return nil, err
	}
	sum := format.NewSum()
	sum.Write(content[:body])
	if !bytes.Equal(sum.Sum(nil), content[body:]) {
		return nil, ErrBadManifest
	}
	text := string(content[manifestHeader:body])
	m := make(manifest, 0, count)
	for range count {
		entry, rest, ok := cutTracked(text, format)
		if !ok {
			return nil, ErrBadManifest
		}
		m, text = append(m, entry), rest
	}
	return m, nil
}

// countEntries reads the number of entries from the start of a manifest.
func countEntries(head []byte) (int, error) {
	if string(head[:len(manifestMagic)]) != manifestMagic {
		return 0, ErrBadManifest
	}
	return int(binary.BigEndian.Uint32(head[8:])), nil
}

// sizeOfManifest returns the number of entries of a manifest without reading them.
func sizeOfManifest(path string, format object.Format) (int, error) {
	m, err := readingManifest(path, format)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	return m.left, nil
}

// cutTracked decodes the first entry of text.
func cutTracked(text string, format object.Format) (entry tracked, rest string, ok bool) {
	header := entryHeader(format)
	if len(text) <= header {
		return tracked{}, "", false
	}
	length := strings.IndexByte(text[header:], 0)
	size := trackedSize(header, length)
	if length <= 0 || size > len(text) {
		return tracked{}, "", false
	}
	entry = tracked{
		path: text[header : header+length],
		mode: filemode.FileMode(number(text[24:])),
		hash: object.IDOf([]byte(text[idOffset : header-2])),
		raw:  text[:size],
	}
	return entry, text[size:], true
}

// trackedSize returns the size of an entry with a header and path of the given lengths: padded with NULs to a
// multiple of 8.
func trackedSize(header, path int) int { return (header + path + 8) &^ 7 }

func number(text string) uint32 {
	return uint32(text[0])<<24 | uint32(text[1])<<16 | uint32(text[2])<<8 | uint32(text[3])
}

// isSkipped reports whether the file was not written to disk.
func (t tracked) isSkipped() bool { return t.raw == "" }

// link links the file at a path into folder, if the tree that is read through from has it unmodified there.
func (t tracked) link(folder disk.Dir, from *disk.Walker, at string, modes fileModes) (size int64, linked bool) {
	last, err := from.Enter(disk.Parent(at), disk.Dir.Open)
	if err != nil {
		return 0, false
	}
	name := path.Base(at)
	st, err := last.Stat(name)
	return st.Size, err == nil && t.isAsWritten(st, modes) && folder.Link(last, name) == nil
}

// isAsWritten reports whether a file on disk is the one the entry describes, unmodified. modes are those of new files.
func (t tracked) isAsWritten(st unix.Stat_t, modes fileModes) bool {
	return number(t.raw[8:]) == uint32(st.Mtim.Sec) && number(t.raw[12:]) == uint32(st.Mtim.Nsec) &&
		number(t.raw[20:]) == uint32(st.Ino) && number(t.raw[36:]) == uint32(st.Size) && modes.fit(t.mode, st.Mode)
}

// FileType returns the file type and the owner's execute bit on disk for a mode.
func FileType(mode filemode.FileMode) uint32 {
	switch mode {
	case filemode.Symlink:
		return unix.S_IFLNK | 0o100
	case filemode.Executable:
		return unix.S_IFREG | 0o100
	}
	return unix.S_IFREG
}

// describe returns the entry of a file on disk; st is zero for a submodule.
func describe(e entry, st unix.Stat_t, format object.Format) tracked {
	header := entryHeader(format)
	raw := make([]byte, trackedSize(header, len(e.path)))
	for i, field := range []uint32{
		uint32(st.Ctim.Sec), uint32(st.Ctim.Nsec), uint32(st.Mtim.Sec), uint32(st.Mtim.Nsec),
		uint32(st.Dev), uint32(st.Ino), uint32(e.mode), st.Uid, st.Gid, uint32(st.Size),
	} {
		binary.BigEndian.PutUint32(raw[4*i:], field)
	}
	copy(raw[idOffset:], e.hash.Bytes())
	binary.BigEndian.PutUint16(raw[header-2:], uint16(min(len(e.path), longPath)))
	copy(raw[header:], e.path)
	return tracked{path: e.path, mode: e.mode, hash: e.hash, raw: string(raw), inPart: e.inPart}
}

// encode returns the manifest as a Git index.
func (m manifest) encode(format object.Format) []byte {
	content := make([]byte, 0, manifestHeader+128*len(m)+format.Size())
	content = binary.BigEndian.AppendUint32(append(content, manifestMagic...), uint32(len(m)))
	for _, t := range m {
		content = append(content, t.raw...)
	}
	sum := format.NewSum()
	sum.Write(content)
	return sum.Sum(content)
}
