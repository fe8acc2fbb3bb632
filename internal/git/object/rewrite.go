package object

import (
	"bufio"
	"compress/zlib"
	"context"
	"encoding/binary"
	"hash"
	"io"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
)

// PackName returns the path of a pack without its extension.
func (s *Stored) PackName(pack int) string {
	return strings.TrimSuffix(s.packs[pack].path, filepath.Ext(s.packs[pack].path))
}

// CountKept returns how many objects of a pack keep selects.
func (s *Stored) CountKept(pack int, keep func(ID) bool) (kept int, err error) {
	for at := range s.Count(pack) {
		id, err := s.ID(Place{int32(pack), uint32(at)})
		if err != nil {
			return 0, err
		}
		if keep(id) {
			kept++
		}
	}
	return kept, nil
}

// WriteKept writes a pack of the objects of a stored pack that keep selects, to w: as they are stored, unless one is a delta on an
// object that is not kept.
func (s *Stored) WriteKept(ctx context.Context, pack int, keep func(ID) bool, w io.Writer) (err error) {
	defer RecoverCorrupt(&err)
	count, err := s.CountKept(pack, keep)
	if err != nil {
		return Corruptf("read a pack: %w", err)
	}
	order, err := s.InOrder(pack)
	if err != nil {
		return Corruptf("read a pack: %w", err)
	}
	r := &keptWriter{s: s, pack: int32(pack), keep: keep, sum: s.packs[pack].index.format.NewSum(), offsets: make([]int64, s.Count(pack))}
	r.out = bufio.NewWriterSize(io.MultiWriter(CancelWriter{Ctx: ctx, Writer: w}, r.sum), chunkSize)
	r.zlib = zlib.NewWriter(r)
	header := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(count))
	if _, err := r.Write(header); err != nil {
		return err
	}
	for _, at := range order {
		id, err := s.ID(Place{r.pack, at})
		if err != nil {
			return Corruptf("read a pack: %w", err)
		}
		if !keep(id) {
			continue
		}
		if err := r.object(id, at); err != nil {
			return err
		}
	}
	if err := r.out.Flush(); err != nil {
		return err
	}
	_, err = w.Write(r.sum.Sum(nil))
	return err
}

// keptWriter writes some objects of a stored pack to another.
type keptWriter struct {
	s       *Stored
	pack    int32
	keep    func(ID) bool
	out     *bufio.Writer
	sum     hash.Hash
	at      int64   // bytes written
	offsets []int64 // in the new pack, by position in the index of the old one; 0 if not written
	zlib    *zlib.Writer
}

func (r *keptWriter) Write(b []byte) (int, error) {
	n, err := r.out.Write(b)
	r.at += int64(n)
	return n, err
}

func (r *keptWriter) object(id ID, at uint32) error {
	e, err := r.s.Entry(Place{r.pack, at})
	if err != nil {
		return Corruptf("object %s: %w", id, err)
	}
	r.offsets[at] = r.at
	if !e.Kind.IsDelta() {
		return r.copy(e, e.Kind, 0, ZeroID)
	}
	base, err := r.s.ID(e.Base)
	if err != nil {
		return Corruptf("object %s: %w", id, err)
	}
	switch written := r.offsets[e.Base.At]; {
	case !r.keep(base):
		return r.whole(id)
	case written != 0:
		return r.copy(e, plumbing.OFSDeltaObject, r.offsets[at]-written, ZeroID)
	}
	return r.copy(e, plumbing.REFDeltaObject, 0, base)
}

// copy writes an object with the compressed data that is stored.
func (r *keptWriter) copy(e Entry, kind plumbing.ObjectType, distance int64, base ID) error {
	if _, err := r.Write(AppendEntry(nil, kind, e.Size, distance, base)); err != nil {
		return err
	}
	n, err := io.Copy(onlyWriter{r}, onlyReader{e.Data})
	if err == nil && n != e.Data.Size() {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// whole compresses an object that is stored as a delta.
func (r *keptWriter) whole(id ID) error {
	obj, err := r.s.store.Object(id)
	if err != nil {
		return Corruptf("object %s: %w", id, err)
	}
	content, err := obj.Reader()
	if err != nil {
		return Corruptf("object %s: %w", id, err)
	}
	defer content.Close()
	if _, err := r.Write(AppendEntry(nil, obj.Kind, obj.Size, 0, ZeroID)); err != nil {
		return err
	}
	r.zlib.Reset(r)
	if _, err := io.Copy(r.zlib, content); err != nil {
		return err
	}
	return r.zlib.Close()
}
