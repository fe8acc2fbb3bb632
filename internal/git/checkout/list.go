package checkout

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"os"
	"strings"

	"lockstep/internal/git/object"
)

// TreeFile is a file, link or submodule of a published tree.
type TreeFile struct {
	Path   string
	Mode   uint32    // as in Git: 0o100644, 0o100755, 0o120000 for a link, 0o160000 for a submodule
	Blob   object.ID // the commit of a submodule; for a file in Git LFS, the pointer
	Size   uint32    // bytes on disk, modulo 4 GiB; 0 for a submodule
	InPart bool      // it belongs to a submodule
}

// List calls visit for each file of the tree, by path, until it returns an error; parts includes the files of
// submodules. It reads the manifest as a stream, so memory does not depend on its size. After the last file
// it returns [ErrBadManifest] if the manifest is damaged.
func (g GitDir) List(parts bool, visit func(TreeFile) error) error {
	format := object.ParseID(g.BuiltFrom()).Format()
	own, err := readingManifest(g.Manifest(), format)
	if err != nil {
		return err
	}
	defer own.Close()
	var inParts *manifestReader
	if parts {
		inParts, err = readingManifest(g.PartsManifest(), format)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if inParts == nil {
		return own.each(visit)
	}
	defer inParts.Close()
	return mergeManifests(own, inParts, visit)
}

func mergeManifests(own, inParts *manifestReader, visit func(TreeFile) error) error {
	mine, err := own.next()
	theirs, partErr := inParts.next()
	for err == nil || partErr == nil {
		if err == nil && (partErr != nil || mine.Path <= theirs.Path) {
			if failed := visit(mine); failed != nil {
				return failed
			}
			mine, err = own.next()
		} else {
			theirs.InPart = true
			if failed := visit(theirs); failed != nil {
				return failed
			}
			theirs, partErr = inParts.next()
		}
		if fails(err) || fails(partErr) {
			break
		}
	}
	for _, one := range []error{err, partErr} {
		if fails(one) {
			return one
		}
	}
	return nil
}

func fails(err error) bool { return err != nil && !errors.Is(err, io.EOF) }

// manifestReader reads a manifest entry by entry.
type manifestReader struct {
	io.Closer
	r      *bufio.Reader // without the checksum
	sum    hash.Hash     // of what was read
	want   []byte        // the checksum
	left   int           // entries
	format object.Format
	head   []byte
}

func readingManifest(path string, format object.Format) (_ *manifestReader, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = file.Close()
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	body := info.Size() - int64(format.Size())
	if body < manifestHeader {
		return nil, ErrBadManifest
	}
	m := &manifestReader{
		Closer: file, sum: format.NewSum(), want: make([]byte, format.Size()), format: format,
		head: make([]byte, entryHeader(format)),
	}
	if _, err := file.ReadAt(m.want, body); err != nil {
		return nil, err
	}
	m.r = bufio.NewReaderSize(io.TeeReader(io.LimitReader(file, body), m.sum), 64<<10)
	head := make([]byte, manifestHeader, manifestHeader+format.Size())
	if _, err := io.ReadFull(m.r, head); err != nil {
		return nil, ErrBadManifest
	}
	m.left, err = countEntries(head[:cap(head)], format)
	return m, err
}

// next returns the next file, or io.EOF after the last one of an undamaged manifest.
func (m *manifestReader) next() (TreeFile, error) {
	if m.left == 0 {
		if _, err := m.r.ReadByte(); !errors.Is(err, io.EOF) || !bytes.Equal(m.sum.Sum(nil), m.want) {
			return TreeFile{}, ErrBadManifest
		}
		return TreeFile{}, io.EOF
	}
	m.left--
	if _, err := io.ReadFull(m.r, m.head); err != nil {
		return TreeFile{}, ErrBadManifest
	}
	path, err := m.r.ReadString(0)
	if err != nil || len(path) < 2 {
		return TreeFile{}, ErrBadManifest
	}
	path = strings.TrimSuffix(path, "\x00")
	if _, err := m.r.Discard(trackedSize(len(m.head), len(path)) - len(m.head) - len(path) - 1); err != nil {
		return TreeFile{}, ErrBadManifest
	}
	return TreeFile{
		Path: path, Mode: binary.BigEndian.Uint32(m.head[24:]), Size: binary.BigEndian.Uint32(m.head[36:]),
		Blob: object.IDOf(m.head[idOffset : len(m.head)-2]),
	}, nil
}

func (m *manifestReader) each(visit func(TreeFile) error) error {
	for {
		file, err := m.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := visit(file); err != nil {
			return err
		}
	}
}
