package object

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"errors"
	"hash"
	"hash/crc32"
	"io"

	"github.com/go-git/go-git/v5/plumbing"
	"golang.org/x/sync/errgroup"
)

// scan reads the pack from its start to its end: where each object begins, and what those hash to that
// are no deltas.
func (r *receiver) scan() error {
	in := newScanner(r)
	err := r.together(func(g *errgroup.Group) error {
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
	return r.checkEnd(in)
}

// checkEnd makes sure that the objects and their checksum are all there is. Git takes a whole store for broken in which
// a pack has anything after it.
func (r *receiver) checkEnd(in *scanner) error {
	if in.offset() != r.end {
		return Corruptf("read the fetched pack: there is more than the pack")
	}
	return r.checkSum(in.sum)
}

func (r *receiver) scanObject(g *errgroup.Group, in *scanner, i int) error {
	e := &r.entries[i]
	e.offset = in.begin()
	head, err := readObjectHead(in)
	if err != nil {
		return err
	}
	e.kind, e.delta = head.kind, head.kind.IsDelta()
	if e.delta {
		return r.scanDelta(in, i, head)
	}
	if err := r.admit(head.kind, head.size); err != nil {
		return err
	}
	if err := r.count(head.size); err != nil {
		return err
	}
	if err := in.inflated.reset(r.ctx, in, head.size); err != nil {
		return err
	}
	if head.size > LargeObject {
		return r.scanLarge(in, e, head)
	}
	content, _ := r.buffers.Get().(*bytes.Buffer)
	if content == nil {
		content = new(bytes.Buffer)
	}
	content.Reset()
	content.Grow(int(head.size) + bytes.MinRead)
	if _, err := content.ReadFrom(&in.inflated); err != nil {
		return err
	}
	e.crc = in.checksum()
	g.Go(func() (err error) {
		defer RecoverCorrupt(&err)
		defer r.buffers.Put(content)
		return r.take(i, head.kind, content.Bytes())
	})
	return nil
}

// scanLarge hashes an object while it is inflated, and writes it to a file if it is to be one.
func (r *receiver) scanLarge(in *scanner, e *packed, head objectHead) error {
	hasher := plumbing.NewHasher(head.kind, head.size)
	var out io.Writer = hasher
	var file *looseFile
	if r.loose {
		var err error
		if file, err = r.createLoose(head.kind, head.size); err != nil {
			return err
		}
		defer file.discard()
		out = io.MultiWriter(hasher, file)
	}
	if _, err := io.CopyBuffer(onlyWriter{out}, &in.inflated, in.chunk); err != nil {
		return err
	}
	e.crc, e.hash = in.checksum(), hasher.Sum()
	r.taken(1)
	if file != nil {
		return file.commit(e.hash)
	}
	return nil
}

// scanDelta finds a delta's end and notes its base.
func (r *receiver) scanDelta(in *scanner, i int, head objectHead) error {
	if err := in.inflated.reset(r.ctx, in, head.size); err != nil {
		return err
	}
	in.delta.Reset(&in.inflated)
	_, size, err := readDeltaSizes(in.delta)
	if err != nil {
		return err
	}
	if size > maxMetadata { // its type is not known yet
		if err := r.admit(plumbing.BlobObject, size); err != nil {
			return err
		}
	}
	if err := r.count(size); err != nil {
		return err
	}
	if (head.size-maxDeltaHead)/maxDeltaStep > size {
		return errors.New("a delta of more instructions than its result has bytes")
	}
	if _, err := io.CopyBuffer(onlyWriter{io.Discard}, onlyReader{in.delta}, in.chunk); err != nil {
		return err
	}
	e := &r.entries[i]
	e.crc = in.checksum()
	if head.kind == plumbing.REFDeltaObject {
		r.refs = append(r.refs, refDelta{head.base, int32(i)})
		return nil
	}
	base, err := r.find(e.offset-head.distance, i)
	if err != nil {
		return err
	}
	e.sibling, r.entries[base].child = r.entries[base].child, int32(i)
	return nil
}

// onlyWriter and onlyReader hide what would make io.CopyBuffer bring a buffer of its own.
type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

// objectHead is what precedes an object's content in a pack.
type objectHead struct {
	kind     plumbing.ObjectType
	size     int64 // of what the content inflates to: of a delta, its instructions
	distance int64 // of an OFS delta, back to its base
	base     ID    // of a REF delta
}

type byteReader interface {
	io.Reader
	io.ByteReader
}

func readObjectHead(in byteReader) (objectHead, error) {
	b, err := in.ReadByte()
	if err != nil {
		return objectHead{}, err
	}
	head := objectHead{kind: plumbing.ObjectType(b >> 4 & 7), size: int64(b & 15)}
	for shift := 4; b&0x80 != 0; shift += 7 {
		if shift > 53 {
			return objectHead{}, errors.New("its size is beyond all bounds")
		}
		if b, err = in.ReadByte(); err != nil {
			return objectHead{}, err
		}
		head.size |= int64(b&0x7f) << shift
	}
	switch head.kind {
	case plumbing.CommitObject, plumbing.TreeObject, plumbing.BlobObject, plumbing.TagObject:
	case plumbing.OFSDeltaObject:
		head.distance, err = readDistance(in)
	case plumbing.REFDeltaObject:
		_, err = io.ReadFull(in, head.base[:])
	default:
		err = errors.New("it is of no known type")
	}
	return head, err
}

func readDistance(in io.ByteReader) (int64, error) {
	b, err := in.ReadByte()
	distance := int64(b & 0x7f)
	for err == nil && b&0x80 != 0 {
		if distance >= 1<<48 {
			return 0, errors.New("its base is out of range")
		}
		b, err = in.ReadByte()
		distance = (distance+1)<<7 | int64(b&0x7f)
	}
	return distance, err
}

// scanner reads the objects of a pack one after the other, never a byte more than it is asked for.
type scanner struct {
	r        *receiver
	sum      hash.Hash // of everything before the trailer; against accidents alone, so without collision detection
	buf      []byte
	pos      int   // in buf, of the next byte
	mark     int   // in buf, of what crc does not cover yet
	at       int64 // in the pack, where buf ends
	crc      uint32
	inflated inflater
	delta    *bufio.Reader
	chunk    []byte
}

const chunkSize = 64 << 10 // bytes read, inflated, hashed or written at a time

func newScanner(r *receiver) *scanner {
	s := &scanner{
		r: r, sum: sha1.New(), buf: make([]byte, 0, chunkSize),
		delta: bufio.NewReader(nil), chunk: make([]byte, chunkSize),
	}
	head := make([]byte, packHeader)
	_, _ = r.ReadAt(head, 0) // what cannot be read is found at the end, by the checksum
	s.sum.Write(head)
	s.at = packHeader
	return s
}

// begin begins an object and returns its offset.
func (s *scanner) begin() int64 {
	s.crc, s.mark = 0, s.pos
	return s.offset()
}

func (s *scanner) offset() int64 { return s.at - int64(len(s.buf)-s.pos) }

// checksum returns the CRC-32 of all that was read since begin.
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

// ReadByte implements [io.ByteReader], for which zlib takes no more than it needs.
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

// inflater reads the content of an object in a pack: as many bytes as it declares, or an error.
type inflater struct {
	ctx  context.Context // of the phase
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

var errSize = errors.New("it does not inflate to the size it declares")

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

// finish returns io.EOF when there is no more, and the checksum is right.
func (f *inflater) finish() error {
	var more [1]byte
	if n, err := io.ReadFull(f.zlib, more[:]); n == 0 {
		return err
	}
	return errSize
}
