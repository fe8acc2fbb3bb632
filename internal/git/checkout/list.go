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
	lists := []*manifestReader{own}
	if parts {
		inParts, err := readingManifest(g.PartsManifest(), format)
		switch {
		case err == nil:
			defer inParts.Close()
			inParts.file.InPart = true
			lists = append(lists, inParts)
		case !errors.Is(err, os.ErrNotExist):
			return err
		}
	}
	for _, m := range lists {
		if err := m.next(); err != nil {
			return err
		}
	}
	for {
		var first *manifestReader
		for _, m := range lists {
			if !m.ended && (first == nil || m.file.Path < first.file.Path) {
				first = m
			}
		}
		if first == nil {
			return nil
		}
		if err := visit(first.file); err != nil {
			return err
		}
		if err := first.next(); err != nil {
			return err
		}
	}
}

// manifestReader reads a manifest entry by entry.
type manifestReader struct {
	io.Closer
	file  TreeFile // set by next
	ended bool     // there is none

	r    *bufio.Reader // without the checksum
	sum  hash.Hash     // of what was read
	want []byte        // the checksum
	left int           // entries
	head []byte
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
	m := &manifestReader{
		Closer: file, sum: format.NewSum(), want: make([]byte, format.Size()),
		head: make([]byte, entryHeader(format)),
	}
	head, body := make([]byte, manifestHeader), info.Size()-int64(format.Size())
	if _, err := io.ReadFull(file, head); err != nil || body < manifestHeader {
		return nil, ErrBadManifest
	}
	if m.left, err = countEntries(head); err != nil || int64(m.left) > body/int64(len(m.head)) {
		return nil, ErrBadManifest
	}
	if _, err := file.ReadAt(m.want, body); err != nil {
		return nil, err
	}
	_, _ = m.sum.Write(head)
	m.r = bufio.NewReaderSize(io.TeeReader(io.LimitReader(file, body-manifestHeader), m.sum), 64<<10)
	return m, nil
}

// next reads the next file. It fails after the last one if the manifest is damaged.
func (m *manifestReader) next() error {
	if m.left == 0 {
		if _, err := m.r.ReadByte(); !errors.Is(err, io.EOF) || !bytes.Equal(m.sum.Sum(nil), m.want) {
			return ErrBadManifest
		}
		m.ended = true
		return nil
	}
	m.left--
	if _, err := io.ReadFull(m.r, m.head); err != nil {
		return ErrBadManifest
	}
	path, err := m.r.ReadString(0)
	if err != nil || len(path) < 2 {
		return ErrBadManifest
	}
	path = strings.TrimSuffix(path, "\x00")
	if _, err := m.r.Discard(trackedSize(len(m.head), len(path)) - len(m.head) - len(path) - 1); err != nil {
		return ErrBadManifest
	}
	m.file = TreeFile{
		Path: path, Mode: binary.BigEndian.Uint32(m.head[24:]), Size: binary.BigEndian.Uint32(m.head[36:]),
		Blob: object.IDOf(m.head[idOffset : len(m.head)-2]), InPart: m.file.InPart,
	}
	return nil
}
