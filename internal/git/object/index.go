package object

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
)

// packIndex looks objects up in the index of a pack, version 2. A sync after a small push asks for a
// few objects only, so the index is not read whole, as go-git would, until it has been asked often.
// It is safe for concurrent use.
type packIndex struct {
	file   *os.File
	size   int64
	fanout [256]uint32

	asked   atomic.Int64
	load    sync.Once
	whole   atomic.Pointer[[]byte] // nil until loaded
	reverse sync.Once
	byPlace []uint32 // positions of the names, in the order of the objects in the pack
}

const (
	indexHead  = 8
	indexNames = indexHead + 256*4
	hashSize   = 20
	manyAsks   = 64 // lookups after which the index is read whole
)

var errBadIndex = errors.New("not a pack index of version 2, or cut short")

func openPackIndex(path string) (*packIndex, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	x := &packIndex{file: file}
	if err := x.readHead(); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return x, nil
}

// CountIndexed returns the number of objects in the pack whose index is at path.
func CountIndexed(path string) (int64, error) {
	index, err := openPackIndex(path)
	if err != nil {
		return 0, err
	}
	defer index.close()
	return index.count(), nil
}

func (x *packIndex) readHead() error {
	info, err := x.file.Stat()
	if err != nil {
		return err
	}
	x.size = info.Size()
	head := make([]byte, indexNames)
	if _, err := x.file.ReadAt(head, 0); err != nil {
		return errBadIndex
	}
	if !bytes.Equal(head[:indexHead], []byte{255, 't', 'O', 'c', 0, 0, 0, 2}) {
		return errBadIndex
	}
	for i := range x.fanout {
		x.fanout[i] = binary.BigEndian.Uint32(head[indexHead+4*i:])
		if i > 0 && x.fanout[i] < x.fanout[i-1] {
			return errBadIndex
		}
	}
	if x.size < x.offsets64()+2*hashSize {
		return errBadIndex
	}
	return nil
}

func (x *packIndex) close() { _ = x.file.Close() }

func (x *packIndex) count() int64     { return int64(x.fanout[255]) }
func (x *packIndex) checksums() int64 { return indexNames + x.count()*hashSize }
func (x *packIndex) offsets() int64   { return x.checksums() + 4*x.count() }
func (x *packIndex) offsets64() int64 { return x.offsets() + 4*x.count() }

// part returns length bytes of the index.
func (x *packIndex) part(offset, length int64) ([]byte, error) {
	if offset < 0 || length < 0 || offset+length > x.size {
		return nil, errBadIndex
	}
	if whole := x.whole.Load(); whole != nil {
		return (*whole)[offset : offset+length], nil
	}
	part := make([]byte, length)
	_, err := x.file.ReadAt(part, offset)
	return part, err
}

// readWhole has all lookups from now on served from memory.
func (x *packIndex) readWhole() {
	x.load.Do(func() {
		whole, err := io.ReadAll(io.NewSectionReader(x.file, 0, x.size))
		if err == nil && int64(len(whole)) == x.size {
			x.whole.Store(&whole)
		}
	})
}

// find returns the position of a name among the names, or -1.
func (x *packIndex) find(h ID) (int64, error) {
	if x.asked.Add(1) == manyAsks {
		x.readWhole()
	}
	low, high := int64(0), int64(x.fanout[h[0]])
	if h[0] > 0 {
		low = int64(x.fanout[h[0]-1])
	}
	names, err := x.part(indexNames+low*hashSize, (high-low)*hashSize)
	if err != nil {
		return -1, err
	}
	at := func(i int) []byte { return names[i*hashSize : (i+1)*hashSize] }
	from, to := 0, int(high-low)
	for from < to {
		middle := (from + to) / 2
		switch bytes.Compare(at(middle), h[:]) {
		case 0:
			return low + int64(middle), nil
		case -1:
			from = middle + 1
		default:
			to = middle
		}
	}
	return -1, nil
}

// Contains implements [idxfile.Index], as the methods below do.
func (x *packIndex) Contains(h ID) (bool, error) {
	i, err := x.find(h)
	return i >= 0, err
}

// FindOffset returns where in the pack an object begins.
func (x *packIndex) FindOffset(h ID) (int64, error) {
	i, err := x.find(h)
	if err != nil {
		return 0, err
	}
	if i < 0 {
		return 0, plumbing.ErrObjectNotFound
	}
	return x.offset(i)
}

// offset returns where in the pack the i-th object by name begins.
func (x *packIndex) offset(i int64) (int64, error) {
	part, err := x.part(x.offsets()+4*i, 4)
	if err != nil {
		return 0, err
	}
	short := binary.BigEndian.Uint32(part)
	if short&(1<<31) == 0 {
		return int64(short), nil
	}
	if part, err = x.part(x.offsets64()+8*int64(short&^(1<<31)), 8); err != nil {
		return 0, err
	}
	long := binary.BigEndian.Uint64(part)
	if long > 1<<62 {
		return 0, errBadIndex
	}
	return int64(long), nil
}

// FindCRC32 returns the checksum of an object's bytes in the pack.
func (x *packIndex) FindCRC32(h ID) (uint32, error) {
	i, err := x.find(h)
	if err != nil {
		return 0, err
	}
	if i < 0 {
		return 0, plumbing.ErrObjectNotFound
	}
	part, err := x.part(x.checksums()+4*i, 4)
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint32(part), nil
}

// FindHash returns the name of the object that begins at an offset. go-git wants it only to look into
// its cache, for the base of a delta: while few objects are asked for, a made-up name that is in no
// cache is better than an order of all offsets.
func (x *packIndex) FindHash(offset int64) (ID, error) {
	var h ID
	if x.asked.Add(1) < manyAsks {
		copy(h[:], "\xffnot a name\xff")
		binary.BigEndian.PutUint64(h[12:], uint64(offset))
		return h, nil
	}
	x.readWhole()
	x.reverse.Do(x.order)
	i, found := slices.BinarySearchFunc(x.byPlace, offset, func(i uint32, offset int64) int {
		at, err := x.offset(int64(i))
		if err != nil {
			return -1
		}
		return int(min(max(at-offset, -1), 1))
	})
	if !found {
		return h, plumbing.ErrObjectNotFound
	}
	name, err := x.part(indexNames+int64(x.byPlace[i])*hashSize, hashSize)
	copy(h[:], name)
	return h, err
}

// order sorts the objects by their place in the pack.
func (x *packIndex) order() {
	offsets := make([]int64, x.count())
	x.byPlace = make([]uint32, x.count())
	for i := range offsets {
		x.byPlace[i] = uint32(i)
		offset, err := x.offset(int64(i))
		if err != nil {
			x.byPlace = nil
			return
		}
		offsets[i] = offset
	}
	slices.SortFunc(x.byPlace, func(a, b uint32) int { return int(min(max(offsets[a]-offsets[b], -1), 1)) })
}

// Count returns the number of objects.
func (x *packIndex) Count() (int64, error) { return x.count(), nil }

// Entries is not there: nobody here lists a pack by it.
func (x *packIndex) Entries() (idxfile.EntryIter, error) { return nil, errors.ErrUnsupported }

// EntriesByOffset is not there, as Entries is not.
func (x *packIndex) EntriesByOffset() (idxfile.EntryIter, error) { return nil, errors.ErrUnsupported }
