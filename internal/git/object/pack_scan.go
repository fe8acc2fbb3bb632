package object

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"hash"
	"hash/crc32"
	"io"

	"github.com/go-git/go-git/v5/plumbing"
	"golang.org/x/sync/errgroup"
)

// scan reads the whole pack. It records the offset of each object and hashes those that are not deltas.
func (r *receiver) scan() error {
	in := newScanner(r)
	err := r.runPhase(func(g *errgroup.Group) error {
		for i := range r.entries {
			if err := r.scanObject(g, in, i); err != nil {
				return Corruptf("read the fetched pack: the object at %d: %w", r.entries[i].offset, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if in.offset() != r.end { // Git considers a store with such a pack broken
		return Corruptf("read the fetched pack: data follows the last object")
	}
	return r.checkSum(in.sum)
}

func (r *receiver) scanObject(g *errgroup.Group, in *scanner, i int) error {
	e := &r.entries[i]
	e.offset = in.begin()
	header, err := readObjectHeader(in, r.format)
	if err != nil {
		return err
	}
	e.kind, e.delta = header.kind, header.kind.IsDelta()
	if e.delta {
		return r.scanDelta(in, i, header)
	}
	if err := r.checkSize(header.kind, header.size); err != nil {
		return err
	}
	if err := r.addInflated(header.size); err != nil {
		return err
	}
	if err := in.inflated.reset(r.ctx, in, header.size); err != nil {
		return err
	}
	if header.size > LargeObject {
		return r.scanLarge(in, e, header)
	}
	content, _ := r.buffers.Get().(*bytes.Buffer)
	if content == nil {
		content = new(bytes.Buffer)
	}
	content.Reset()
	content.Grow(int(header.size) + bytes.MinRead)
	if _, err := content.ReadFrom(&in.inflated); err != nil {
		return err
	}
	e.crc = in.checksum()
	g.Go(func() (err error) {
		defer RecoverCorrupt(&err)
		defer r.buffers.Put(content)
		return r.addObject(i, header.kind, content.Bytes())
	})
	return nil
}

// scanLarge hashes an object while inflating it, and writes its loose file if needed.
func (r *receiver) scanLarge(in *scanner, e *packed, header objectHeader) error {
	hasher := r.format.NewHasher(header.kind, header.size)
	var out io.Writer = hasher
	var file *looseFile
	if r.loose {
		var err error
		if file, err = r.createLoose(header.kind, header.size); err != nil {
			return err
		}
		defer file.discard()
		out = io.MultiWriter(hasher, file)
	}
	if _, err := io.CopyBuffer(onlyWriter{out}, &in.inflated, in.chunk); err != nil {
		return err
	}
	e.crc, e.hash = in.checksum(), hasher.ID()
	r.received(1)
	if file != nil {
		return file.commit(e.hash)
	}
	return nil
}

// scanDelta finds the end of a delta and records its base.
func (r *receiver) scanDelta(in *scanner, i int, header objectHeader) error {
	if err := in.inflated.reset(r.ctx, in, header.size); err != nil {
		return err
	}
	in.delta.Reset(&in.inflated)
	_, size, err := readDeltaSizes(in.delta)
	if err != nil {
		return err
	}
	if size > maxMetadata { // its type is not yet known
		if err := r.checkSize(plumbing.BlobObject, size); err != nil {
			return err
		}
	}
	if err := r.addInflated(size); err != nil {
		return err
	}
	if (header.size-maxDeltaHeader)/maxInstruction > size {
		return errors.New("delta has more instructions than bytes in its result")
	}
	if _, err := io.CopyBuffer(onlyWriter{io.Discard}, onlyReader{in.delta}, in.chunk); err != nil {
		return err
	}
	e := &r.entries[i]
	e.crc = in.checksum()
	if header.kind == plumbing.REFDeltaObject {
		r.refs = append(r.refs, refDelta{base: header.base, entry: int32(i)})
		return nil
	}
	base, err := r.find(e.offset-header.distance, i)
	if err != nil {
		return err
	}
	e.sibling, r.entries[base].child = r.entries[base].child, int32(i)
	return nil
}

// onlyWriter and onlyReader hide ReadFrom and WriteTo, so that io.CopyBuffer uses its buffer.
type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

// objectHeader precedes an object's content in a pack.
type objectHeader struct {
	kind     plumbing.ObjectType
	size     int64 // of the inflated content, which for a delta is its instructions
	distance int64 // from an OFS delta back to its base
	base     ID    // of a REF delta
}

type byteReader interface {
	io.Reader
	io.ByteReader
}

func readObjectHeader(in byteReader, format Format) (objectHeader, error) {
	b, err := in.ReadByte()
	if err != nil {
		return objectHeader{}, err
	}
	header := objectHeader{kind: plumbing.ObjectType(b >> 4 & 7), size: int64(b & 15)}
	for shift := 4; b&0x80 != 0; shift += 7 {
		if shift > 53 {
			return objectHeader{}, errors.New("size out of range")
		}
		if b, err = in.ReadByte(); err != nil {
			return objectHeader{}, err
		}
		header.size |= int64(b&0x7f) << shift
	}
	switch header.kind {
	case plumbing.CommitObject, plumbing.TreeObject, plumbing.BlobObject, plumbing.TagObject:
	case plumbing.OFSDeltaObject:
		header.distance, err = readDistance(in)
	case plumbing.REFDeltaObject:
		base := make([]byte, format.Size())
		if _, err := io.ReadFull(in, base); err != nil {
			return header, err
		}
		header.base = IDOf(base)
	default:
		err = errors.New("unknown type")
	}
	return header, err
}

// headerIn reads the header of the object between two offsets of a pack, and returns where its data begins.
func headerIn(pack io.ReaderAt, from, to int64, format Format) (header objectHeader, data int64, err error) {
	start := make([]byte, max(0, min(maxObjectHeader, to-from)))
	if _, err := pack.ReadAt(start, from); err != nil {
		return header, 0, noEOF(err)
	}
	rest := bytes.NewReader(start)
	header, err = readObjectHeader(rest, format)
	return header, from + int64(len(start)-rest.Len()), noEOF(err)
}

func readDistance(in io.ByteReader) (int64, error) {
	b, err := in.ReadByte()
	if err != nil {
		return 0, err
	}
	distance := int64(b & 0x7f)
	for b&0x80 != 0 {
		if distance >= 1<<48 {
			return 0, errors.New("distance to the base out of range")
		}
		if b, err = in.ReadByte(); err != nil {
			return 0, err
		}
		distance = (distance+1)<<7 | int64(b&0x7f)
	}
	return distance, nil
}

// scanner reads the objects of a pack in order. It consumes no byte beyond those requested.
type scanner struct {
	r        *receiver
	sum      hash.Hash // of everything before the checksum; detects accidents only, hence no collision detection
	buf      []byte
	pos      int   // position of the next byte in buf
	mark     int   // position in buf up to which crc is computed
	at       int64 // offset in the pack of the end of buf
	crc      uint32
	inflated inflater
	delta    *bufio.Reader
	chunk    []byte
}

const chunkSize = 64 << 10 // bytes read, inflated, hashed or written at a time

func newScanner(r *receiver) *scanner {
	s := &scanner{
		r: r, sum: r.format.NewSum(), buf: make([]byte, 0, chunkSize),
		delta: bufio.NewReader(nil), chunk: make([]byte, chunkSize),
	}
	header := make([]byte, packHeader)
	_, _ = r.ReadAt(header, 0) // the checksum detects a failure
	s.sum.Write(header)
	s.at = packHeader
	return s
}

// begin starts an object and returns its offset.
func (s *scanner) begin() int64 {
	s.crc, s.mark = 0, s.pos
	return s.offset()
}

func (s *scanner) offset() int64 { return s.at - int64(len(s.buf)-s.pos) }

// checksum returns the CRC-32 of the bytes read since begin.
func (s *scanner) checksum() uint32 {
	s.crc = crc32.Update(s.crc, crc32.IEEETable, s.buf[s.mark:s.pos])
	s.mark = s.pos
	return s.crc
}

func (s *scanner) fill() error {
	s.checksum()
	if s.at == s.r.end {
		return io.ErrUnexpectedEOF
	}
	s.buf = s.buf[:min(int64(cap(s.buf)), s.r.end-s.at)]
	if _, err := s.r.ReadAt(s.buf, s.at); err != nil {
		return noEOF(err)
	}
	s.sum.Write(s.buf)
	s.at += int64(len(s.buf))
	s.pos, s.mark = 0, 0
	return nil
}

// ReadByte implements [io.ByteReader], with which zlib does not read ahead.
func (s *scanner) ReadByte() (byte, error) {
	if s.pos == len(s.buf) {
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
	b := s.buf[s.pos]
	s.pos++
	return b, nil
}

func (s *scanner) Read(b []byte) (int, error) {
	if s.pos == len(s.buf) {
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(b, s.buf[s.pos:])
	s.pos += n
	return n, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// inflater reads the content of an object in a pack, and fails unless it has the declared size.
type inflater struct {
	ctx  context.Context // of the current phase
	zlib io.ReadCloser
	left int64
}

func (f *inflater) reset(ctx context.Context, in byteReader, size int64) (err error) {
	f.ctx, f.left = ctx, size
	if f.zlib == nil {
		f.zlib, err = zlib.NewReader(in)
	} else {
		err = f.zlib.(zlib.Resetter).Reset(in, nil)
	}
	return noEOF(err)
}

var errSize = errors.New("content does not have the declared size")

func (f *inflater) Read(b []byte) (int, error) {
	if f.ctx.Err() != nil {
		return 0, context.Cause(f.ctx)
	}
	if f.left == 0 {
		return 0, f.finish()
	}
	n, err := f.zlib.Read(b[:min(int64(len(b)), f.left)])
	f.left -= int64(n)
	switch {
	case err == nil, errors.Is(err, io.EOF) && f.left == 0:
		return n, nil
	case errors.Is(err, io.EOF):
		return n, errSize
	}
	return n, err
}

// finish returns io.EOF if no data follows and the zlib checksum is right.
func (f *inflater) finish() error {
	var more [1]byte
	if n, err := io.ReadFull(f.zlib, more[:]); n == 0 {
		return err
	}
	return errSize
}
