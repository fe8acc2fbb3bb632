package object

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/go-git/go-git/v5/plumbing"
)

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
		k, err := p.packOf(h)
		if err != nil {
			return nil, false
		}
		if k == nil {
			if len(o.repos) > 1 {
				return nil, false // it may be loose here
			}
			continue
		}
		offset, err := k.index.findOffset(h)
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
