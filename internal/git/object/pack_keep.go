package object

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"

	"lockstep/internal/disk"
)

// wholes are objects that a pack is to have whole before it is kept: the bases that a thin pack lacks,
// as Git's index-pack --fix-thin has it, and the deltas with a large object among their bases, which
// go-git could only read by holding that in memory.
type wholes struct {
	file    *os.File // all of them as they are in a pack; nil until needed
	end     int64
	entries map[int32]span // in place of deltas
	bases   []baseSpan     // after the last object
}

// span is a part of the file of wholes.
type span struct{ offset, size int64 }

type baseSpan struct {
	hash ID
	kind plumbing.ObjectType
	span span
}

func (ws *wholes) close() {
	if ws.file != nil {
		_ = ws.file.Close()
	}
}

// addBase notes an object of the store that the pack is to have after its own.
func (r *receiver) addBase(h ID, c *content, from io.Reader) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	place, err := r.pack(c, from)
	r.whole.bases = append(r.whole.bases, baseSpan{h, c.kind, place})
	return err
}

// addWhole notes an object that the pack is to have whole in place of a delta.
func (r *receiver) addWhole(i int32, c *content, from io.Reader) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	place, err := r.pack(c, from)
	if r.whole.entries == nil {
		r.whole.entries = map[int32]span{}
	}
	r.whole.entries[i] = place
	return err
}

// pack adds an object to the file of wholes. The caller holds mu.
func (r *receiver) pack(c *content, from io.Reader) (place span, err error) {
	ws := &r.whole
	if ws.file == nil {
		if ws.file, err = os.CreateTemp(r.q.Dir, tempObject+"whole-*"); err != nil {
			return place, disk.Error("make a temporary file", err)
		}
		_ = os.Remove(ws.file.Name()) // what cannot be removed now is swept later
	}
	place.offset = ws.end
	out := bufio.NewWriterSize(CancelWriter{r.ctx, io.NewOffsetWriter(ws.file, ws.end)}, chunkSize)
	counted := &counter{w: out}
	z := r.deflate(counted)
	defer r.deflaters.Put(z)
	_, err = counted.Write(appendObjectHead(nil, c.kind, c.size))
	if err == nil {
		_, err = io.Copy(z, from)
	}
	if err == nil {
		err = errors.Join(z.Close(), out.Flush())
	}
	place.size = counted.n
	ws.end += counted.n
	if r.ctx.Err() != nil {
		return place, err
	}
	return place, disk.Error("write a temporary file", err)
}

// counter counts what is written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

const maxObjectHead = 32 // bytes before an object's content, and a few more

// appendObjectHead appends what precedes an object's content in a pack.
func appendObjectHead(b []byte, kind plumbing.ObjectType, size int64) []byte {
	first := byte(kind)<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		b = append(b, first|0x80)
		first = byte(size & 0x7f)
	}
	return append(b, first)
}

// appendDistance appends how far before an OFS delta its base begins.
func appendDistance(b []byte, distance int64) []byte {
	var digits [10]byte
	i := len(digits) - 1
	digits[i] = byte(distance & 0x7f)
	for distance >>= 7; distance > 0; distance >>= 7 {
		distance--
		i--
		digits[i] = 0x80 | byte(distance&0x7f)
	}
	return append(b, digits[i:]...)
}

// keep puts the pack and its index in place.
func (r *receiver) keep() error {
	path, sum, err := r.file.Name(), []byte(nil), error(nil)
	if r.whole.file == nil {
		sum = make([]byte, packTrailer)
		_, err = r.ReadAt(sum, r.end)
	} else {
		path, sum, err = r.rewrite()
	}
	if err != nil {
		return err
	}
	base := filepath.Join(r.q.Dir, "objects", "pack", "pack-"+hex.EncodeToString(sum))
	if err := r.writeIndex(base+".idx", sum); err != nil {
		return disk.Error("index the fetched pack", err)
	}
	if err := os.Rename(path, base+".pack"); err != nil {
		return disk.Error("take in the fetched pack", err)
	}
	if path != r.file.Name() {
		return disk.Error("drop the fetched pack", os.Remove(r.file.Name()))
	}
	return nil
}

// rewriter writes a pack anew.
type rewriter struct {
	r   *receiver
	out *bufio.Writer // to sum and the file
	sum hash.Hash
	crc uint32 // of the object being written
	at  int64
}

// rewrite writes the pack anew with all of the wholes in it, and returns its path and checksum.
func (r *receiver) rewrite() (path string, sum []byte, err error) {
	path = filepath.Join(r.q.Dir, tempObject+"pack")
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", nil, disk.Error("complete the fetched pack", err)
	}
	defer file.Close()
	rw := &rewriter{r: r, sum: sha1.New()}
	rw.out = bufio.NewWriterSize(CancelWriter{r.ctx, io.MultiWriter(rw.sum, file)}, chunkSize)
	err = rw.run()
	if err == nil {
		err = rw.out.Flush()
	}
	sum = rw.sum.Sum(nil)
	if err == nil {
		_, err = file.Write(sum)
	}
	if err == nil {
		err = file.Close()
	}
	if r.ctx.Err() != nil {
		return "", nil, err
	}
	return path, sum, disk.Error("complete the fetched pack", err)
}

func (rw *rewriter) run() error {
	r := rw.r
	count := uint32(len(r.entries) + len(r.whole.bases))
	if _, err := rw.Write(binary.BigEndian.AppendUint32(slices.Clone(packMagic), count)); err != nil {
		return err
	}
	moved := make([]packed, 0, count)
	for i := range r.entries {
		next, err := rw.object(moved, i)
		if err != nil {
			return err
		}
		moved = append(moved, next)
	}
	for _, b := range r.whole.bases {
		next := packed{hash: b.hash, kind: b.kind, offset: rw.at}
		rw.crc = 0
		if err := rw.copy(r.whole.file, b.span.offset, b.span.size); err != nil {
			return err
		}
		next.crc = rw.crc
		moved = append(moved, next)
	}
	r.entries = moved
	return nil
}

// object writes the i-th object: whole if it is to be, else as it came, but for the distance of a base
// that has moved.
func (rw *rewriter) object(moved []packed, i int) (packed, error) {
	r := rw.r
	was := r.entries[i]
	is := packed{hash: was.hash, kind: was.kind, offset: rw.at}
	rw.crc = 0
	if place, ok := r.whole.entries[int32(i)]; ok {
		err := rw.copy(r.whole.file, place.offset, place.size)
		is.crc = rw.crc
		return is, err
	}
	end := r.end
	if i+1 < len(r.entries) {
		end = r.entries[i+1].offset
	}
	start := make([]byte, min(maxObjectHead, end-was.offset))
	if _, err := r.ReadAt(start, was.offset); err != nil {
		return is, err
	}
	rest := bytes.NewReader(start)
	head, err := readObjectHead(rest)
	if err != nil {
		return is, err
	}
	written := appendObjectHead(nil, head.kind, head.size)
	switch head.kind {
	case plumbing.OFSDeltaObject:
		base, err := r.find(was.offset-head.distance, i)
		if err != nil {
			return is, err
		}
		written = appendDistance(written, is.offset-moved[base].offset)
	case plumbing.REFDeltaObject:
		written = append(written, head.base[:]...)
	}
	if _, err := rw.Write(written); err != nil {
		return is, err
	}
	from := was.offset + int64(len(start)-rest.Len())
	err = rw.copy(r, from, end-from)
	is.crc = rw.crc
	return is, err
}

func (rw *rewriter) copy(from io.ReaderAt, offset, size int64) error {
	_, err := io.Copy(rw, io.NewSectionReader(from, offset, size))
	return err
}

func (rw *rewriter) Write(b []byte) (int, error) {
	rw.crc = crc32.Update(rw.crc, crc32.IEEETable, b)
	rw.at += int64(len(b))
	return rw.out.Write(b)
}

// writeIndex writes an index of version 2 for the pack of the given checksum.
func (r *receiver) writeIndex(path string, packSum []byte) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	sum := sha1.New()
	out := bufio.NewWriterSize(io.MultiWriter(sum, file), chunkSize)
	r.index(out, packSum)
	if err := out.Flush(); err != nil {
		return err
	}
	if _, err := file.Write(sum.Sum(nil)); err != nil {
		return err
	}
	return file.Close()
}

// index writes all of an index but its own checksum. The writer remembers a failure.
func (r *receiver) index(out *bufio.Writer, packSum []byte) {
	byName := make([]int32, len(r.entries))
	var fanout [256]uint32
	for i := range r.entries {
		byName[i] = int32(i)
		fanout[r.entries[i].hash[0]]++
	}
	slices.SortFunc(byName, func(a, b int32) int {
		return cmp.Or(bytes.Compare(r.entries[a].hash[:], r.entries[b].hash[:]), cmp.Compare(a, b))
	})
	number := func(n uint32) { _, _ = out.Write(binary.BigEndian.AppendUint32(out.AvailableBuffer(), n)) }
	_, _ = out.WriteString("\xfftOc\x00\x00\x00\x02")
	below := uint32(0)
	for _, n := range fanout {
		below += n
		number(below)
	}
	for _, i := range byName {
		_, _ = out.Write(r.entries[i].hash[:])
	}
	for _, i := range byName {
		number(r.entries[i].crc)
	}
	var far []int64
	for _, i := range byName {
		offset := r.entries[i].offset
		if offset > math.MaxInt32 {
			far = append(far, offset)
			offset = 1<<31 | int64(len(far)-1)
		}
		number(uint32(offset))
	}
	for _, offset := range far {
		number(uint32(offset >> 32))
		number(uint32(offset))
	}
	_, _ = out.Write(packSum)
}
