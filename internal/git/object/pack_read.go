package object

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
)

// pack is a pack and its index. Forks share both files.
type pack struct {
	index  *packIndex
	file   *os.File
	forked bool
}

// openPack opens the pack at path, and its index.
func openPack(path string) (*pack, error) {
	index, err := openPackIndex(strings.TrimSuffix(path, ".pack") + ".idx")
	if err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	file, err := os.Open(path)
	if err != nil {
		index.close()
		return nil, err
	}
	return &pack{index: index, file: file}, nil
}

func (k *pack) close() {
	if k.forked {
		return
	}
	_ = k.file.Close()
	k.index.close()
}

// at returns a reader of the pack from an offset.
func (k *pack) at(offset int64) io.Reader {
	return io.NewSectionReader(k.file, offset, math.MaxInt64-offset)
}

// packReader reads objects of packs. It keeps the bases of deltas, which are often those of other deltas too,
// and reuses its buffers.
type packReader struct {
	in       *bufio.Reader
	inflated inflater
	patcher  patcher
	bases    baseCache
}

func newPackReader() *packReader {
	return &packReader{in: bufio.NewReaderSize(nil, firstRead), patcher: newPatcher(), bases: baseCache{left: CacheSize}}
}

// get reads the object at an offset of a pack. Only objects that are stored in full may be larger than memory.
func (p *packReader) get(k *pack, offset int64) (*Object, error) {
	var deltas []int64 // offsets of the deltas that lead to the base
	for {
		if known := p.bases.known[place{k, offset}]; known != nil {
			return p.apply(k, known, deltas)
		}
		header, err := p.header(k, offset)
		if err != nil {
			return nil, fmt.Errorf("the object at %d: %w", offset, err)
		}
		if !header.kind.IsDelta() {
			if len(deltas) == 0 && header.size > LargeObject {
				return &Object{
					Kind: header.kind, Size: header.size, open: func() (io.ReadCloser, error) { return k.stream(offset) },
				}, nil
			}
			content, err := p.inflate(header.size)
			if err != nil {
				return nil, fmt.Errorf("the object at %d: %w", offset, err)
			}
			base := &Object{Kind: header.kind, Size: header.size, content: content}
			if len(deltas) > 0 {
				p.bases.add(place{k, offset}, base)
			}
			return p.apply(k, base, deltas)
		}
		if int64(len(deltas)) > k.index.count {
			return nil, errors.New("the bases of a delta form a cycle")
		}
		deltas = append(deltas, offset)
		if offset, err = baseOffset(k, offset, header); err != nil {
			return nil, err
		}
	}
}

// baseOffset returns the offset of a delta's base.
func baseOffset(k *pack, offset int64, header objectHeader) (int64, error) {
	if header.kind == plumbing.REFDeltaObject {
		base, err := k.index.findOffset(header.base)
		if errors.Is(err, ErrNotFound) {
			return 0, fmt.Errorf("the base %s of the delta at %d is missing", header.base, offset)
		}
		return base, err
	}
	if header.distance <= 0 || header.distance > offset-packHeader {
		return 0, fmt.Errorf("the base of the delta at %d is outside the pack", offset)
	}
	return offset - header.distance, nil
}

// header reads the header at an offset, and prepares to inflate the content.
func (p *packReader) header(k *pack, offset int64) (objectHeader, error) {
	p.in.Reset(k.at(offset))
	header, err := readObjectHeader(p.in, k.index.format)
	return header, noEOF(err)
}

// inflate returns the content after a header. It allocates no more than the pack has, whatever size a damaged
// header declares.
func (p *packReader) inflate(size int64) ([]byte, error) {
	if err := p.inflated.reset(context.Background(), p.in, size); err != nil {
		return nil, err
	}
	content := bytes.NewBuffer(make([]byte, 0, min(size, LargeObject)+bytes.MinRead))
	_, err := content.ReadFrom(&p.inflated)
	return content.Bytes(), err
}

// apply applies deltas, the last one first.
func (p *packReader) apply(k *pack, base *Object, deltas []int64) (*Object, error) {
	for i := len(deltas) - 1; i >= 0; i-- {
		result, err := p.patch(k, base, deltas[i])
		if err != nil {
			return nil, fmt.Errorf("the delta at %d: %w", deltas[i], err)
		}
		base = result
		if i > 0 {
			p.bases.add(place{k, deltas[i]}, base)
		}
	}
	return base, nil
}

func (p *packReader) patch(k *pack, base *Object, offset int64) (*Object, error) {
	header, err := p.header(k, offset)
	if err != nil {
		return nil, err
	}
	if err := p.inflated.reset(context.Background(), p.in, header.size); err != nil {
		return nil, err
	}
	baseSize, size, err := p.patcher.begin(&p.inflated)
	if err != nil {
		return nil, err
	}
	if baseSize != base.Size {
		return nil, fmt.Errorf("needs a base of %d bytes; the base has %d", baseSize, base.Size)
	}
	out := bytes.NewBuffer(make([]byte, 0, min(size, LargeObject)))
	if err := p.patcher.patch(out, bytes.NewReader(base.content), baseSize, size); err != nil {
		return nil, err
	}
	return &Object{Kind: base.Kind, Size: size, content: out.Bytes()}, nil
}

// stream returns the content of an object that is stored in full.
func (k *pack) stream(offset int64) (io.ReadCloser, error) {
	in := bufio.NewReader(k.at(offset))
	if _, err := readObjectHeader(in, k.index.format); err != nil {
		return nil, noEOF(err)
	}
	return zlib.NewReader(in)
}

// place is where an object is.
type place struct {
	pack   *pack
	offset int64
}

// baseCache holds bases of deltas. It forgets the oldest ones when it is full.
type baseCache struct {
	left  int64 // bytes
	known map[place]*Object
	order []place // oldest first
}

func (c *baseCache) add(at place, o *Object) {
	if o.Size > LargeObject || c.known[at] != nil {
		return
	}
	if c.known == nil {
		c.known = map[place]*Object{}
	}
	c.known[at] = o
	c.order = append(c.order, at)
	for c.left -= o.Size; c.left < 0; c.order = c.order[1:] {
		c.left += c.known[c.order[0]].Size
		delete(c.known, c.order[0])
	}
}

// direct reads small blobs that are stored in full in a pack, as nearly all are in the pack of a first clone,
// with one read of the file and no allocation.
type direct struct {
	packed, content []byte // reused
	inflated        inflater
}

// maxOverhead is a bound for how much longer than its content a packed object of up to LargeObject bytes is.
const maxOverhead = maxObjectHeader + 64 + LargeObject/1000

// blob returns a blob's content, which is valid until the next call. ok is false if it has to be read in
// another way, or is damaged. It does not verify the hash.
func (o *Store) blob(h ID) (content []byte, ok bool) {
	for n := range o.repos {
		p := o.repos[o.index(n)]
		k, i, err := p.packOf(h)
		if err != nil {
			return nil, false
		}
		if k == nil {
			if len(o.repos) > 1 {
				return nil, false // it may be loose here
			}
			continue
		}
		offset, err := k.index.offset(i)
		if err != nil {
			return nil, false
		}
		return o.direct.read(k, offset)
	}
	return nil, false
}

// firstRead is the number of bytes read of an object of unknown size.
const firstRead = 8 << 10

// read reads the blob at an offset of a pack.
func (d *direct) read(k *pack, offset int64) (content []byte, ok bool) {
	in, header, ok := d.header(k, offset, firstRead)
	if !ok || header.kind != plumbing.BlobObject || header.size > LargeObject {
		return nil, false
	}
	if header.size+maxOverhead > firstRead {
		if in, _, ok = d.header(k, offset, int(header.size)+maxOverhead); !ok {
			return nil, false
		}
	}
	if int64(cap(d.content)) < header.size {
		d.content = make([]byte, header.size)
	}
	d.content = d.content[:header.size]
	if err := d.inflated.reset(context.Background(), in, header.size); err != nil {
		return nil, false
	}
	if _, err := io.ReadFull(&d.inflated, d.content); err != nil {
		return nil, false
	}
	if err := d.inflated.finish(); !errors.Is(err, io.EOF) {
		return nil, false
	}
	return d.content, true
}

// header reads up to length bytes of the object at an offset, and its header.
func (d *direct) header(k *pack, offset int64, length int) (in *bytes.Reader, header objectHeader, ok bool) {
	if cap(d.packed) < length {
		d.packed = make([]byte, length)
	}
	n, err := k.file.ReadAt(d.packed[:length], offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, header, false
	}
	in = bytes.NewReader(d.packed[:n])
	header, err = readObjectHeader(in, k.index.format)
	return in, header, err == nil
}
