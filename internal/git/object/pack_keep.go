package object

import (
	"bufio"
	"cmp"
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

// fullObjects are objects that the installed pack contains in full although the fetched pack does not: the
// bases missing from a thin pack (as with git index-pack --fix-thin), and deltas with a large object among
// their bases, which [Store] would hold in memory to read them.
type fullObjects struct {
	spill                     // the objects in pack format
	entries map[int32]section // replace deltas
	bases   []fullBase        // follow the last object
}

// section is a part of the spill.
type section struct{ offset, size int64 }

type fullBase struct {
	hash ID
	kind plumbing.ObjectType
	section
}

// addBase appends an object of the store to the pack.
func (r *receiver) addBase(h ID, c *content, from io.Reader) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.writeFull(c, from)
	r.full.bases = append(r.full.bases, fullBase{h, c.kind, s})
	return err
}

// addFull replaces a delta in the pack with its result.
func (r *receiver) addFull(i int32, c *content, from io.Reader) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.writeFull(c, from)
	if r.full.entries == nil {
		r.full.entries = map[int32]section{}
	}
	r.full.entries[i] = s
	return err
}

// writeFull writes an object to the spill in pack format. The caller holds mu.
func (r *receiver) writeFull(c *content, from io.Reader) (s section, err error) {
	s.offset = r.full.end
	out := bufio.NewWriterSize(CancelWriter{r.ctx, &r.full.spill}, chunkSize)
	z := r.deflate(out)
	defer r.deflaters.Put(z)
	if _, err := out.Write(appendObjectHeader(nil, c.kind, c.size)); err != nil {
		return s, err
	}
	if _, err := io.Copy(z, from); err != nil {
		return s, err
	}
	if err := errors.Join(z.Close(), out.Flush()); err != nil {
		return s, err
	}
	s.size = r.full.end - s.offset
	return s, nil
}

const maxObjectHeader = 48 // bytes; an upper bound, with the ID of a base

// appendObjectHeader appends the type and size of an object in a pack.
func appendObjectHeader(b []byte, kind plumbing.ObjectType, size int64) []byte {
	first := byte(kind)<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		b = append(b, first|0x80)
		first = byte(size & 0x7f)
	}
	return append(b, first)
}

// appendDistance appends the distance from an OFS delta back to its base.
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

// install moves the pack into place and writes its index.
func (r *receiver) install() error {
	path, sum, err := r.file.Name(), []byte(nil), error(nil)
	if r.full.end == 0 {
		sum = make([]byte, r.format.Size())
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
		return disk.Error("rename the fetched pack", err)
	}
	if path != r.file.Name() {
		return disk.Error("remove the fetched pack", os.Remove(r.file.Name()))
	}
	return nil
}

// rewriter writes the final pack.
type rewriter struct {
	r   *receiver
	out *bufio.Writer // writes to sum and the file
	sum hash.Hash
	crc uint32 // of the object being written
	at  int64
}

// rewrite writes the final pack, which includes the full objects, and returns its path and checksum.
func (r *receiver) rewrite() (path string, sum []byte, err error) {
	path = filepath.Join(r.q.Dir, tempObject+"pack")
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", nil, disk.Error("complete the fetched pack", err)
	}
	defer file.Close()
	rw := &rewriter{r: r, sum: r.format.NewSum()}
	rw.out = bufio.NewWriterSize(CancelWriter{r.ctx, io.MultiWriter(rw.sum, file)}, chunkSize)
	sum, err = rw.write(file)
	if err != nil && r.ctx.Err() != nil {
		return "", nil, err
	}
	return path, sum, disk.Error("complete the fetched pack", err)
}

// write writes the pack with its checksum, and closes the file.
func (rw *rewriter) write(file *os.File) (sum []byte, err error) {
	if err := rw.run(); err != nil {
		return nil, err
	}
	if err := rw.out.Flush(); err != nil {
		return nil, err
	}
	sum = rw.sum.Sum(nil)
	if _, err := file.Write(sum); err != nil {
		return nil, err
	}
	return sum, file.Close()
}

func (rw *rewriter) run() error {
	r := rw.r
	count := uint32(len(r.entries) + len(r.full.bases))
	if _, err := rw.Write(binary.BigEndian.AppendUint32(slices.Clone(packMagic), count)); err != nil {
		return err
	}
	written := make([]packed, 0, count)
	for i := range r.entries {
		next, err := rw.object(written, i)
		if err != nil {
			return err
		}
		written = append(written, next)
	}
	for _, b := range r.full.bases {
		next := packed{hash: b.hash, kind: b.kind, offset: rw.at}
		rw.crc = 0
		if err := rw.copy(&r.full, b.offset, b.size); err != nil {
			return err
		}
		next.crc = rw.crc
		written = append(written, next)
	}
	r.entries = written
	return nil
}

// object writes the i-th object: in full if it is among the full objects, otherwise as it was fetched, with the
// new distance to its base. written are the objects before it.
func (rw *rewriter) object(written []packed, i int) (e packed, err error) {
	r := rw.r
	old := r.entries[i]
	e = packed{hash: old.hash, kind: old.kind, offset: rw.at}
	rw.crc = 0
	defer func() { e.crc = rw.crc }()
	if s, ok := r.full.entries[int32(i)]; ok {
		return e, rw.copy(&r.full, s.offset, s.size)
	}
	end := r.end
	if i+1 < len(r.entries) {
		end = r.entries[i+1].offset
	}
	header, data, err := headerIn(r, old.offset, end, r.format)
	if err != nil {
		return e, err
	}
	b := appendObjectHeader(nil, header.kind, header.size)
	switch header.kind {
	case plumbing.OFSDeltaObject:
		base, err := r.find(old.offset-header.distance, i)
		if err != nil {
			return e, err
		}
		b = appendDistance(b, e.offset-written[base].offset)
	case plumbing.REFDeltaObject:
		b = append(b, header.base.Bytes()...)
	}
	if _, err := rw.Write(b); err != nil {
		return e, err
	}
	return e, rw.copy(r, data, end-data)
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

// writeIndex writes an index of version 2 for the pack with the given checksum.
func (r *receiver) writeIndex(path string, packSum []byte) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	sum := r.format.NewSum()
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

// index writes the index without its own checksum. Errors stay in the writer until it is flushed.
func (r *receiver) index(out *bufio.Writer, packSum []byte) {
	byName := make([]int32, len(r.entries))
	var fanout [256]uint32
	for i := range r.entries {
		byName[i] = int32(i)
		fanout[r.entries[i].hash.sum[0]]++
	}
	slices.SortFunc(byName, func(a, b int32) int {
		return cmp.Or(r.entries[a].hash.Compare(r.entries[b].hash), cmp.Compare(a, b))
	})
	number := func(n uint32) { _, _ = out.Write(binary.BigEndian.AppendUint32(out.AvailableBuffer(), n)) }
	_, _ = out.WriteString("\xfftOc\x00\x00\x00\x02")
	total := uint32(0)
	for _, n := range fanout {
		total += n
		number(total)
	}
	for _, i := range byName {
		_, _ = out.Write(r.entries[i].hash.Bytes())
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
