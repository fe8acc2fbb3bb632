package object

import (
	"bytes"
	"cmp"
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

// packIndex looks up objects in a pack index of version 2. A sync of a small push needs few objects, so the
// index is read into memory only after many lookups, unlike go-git's. It is safe for concurrent use.
type packIndex struct {
	file   *os.File
	size   int64
	fanout [256]uint32

	lookups  atomic.Int64
	load     sync.Once
	cached   atomic.Pointer[[]byte] // the whole index; nil until loaded
	reverse  sync.Once
	byOffset []uint32 // positions of the hashes in the index, in the order of the objects in the pack
}

const (
	indexHeader = 8
	indexNames  = indexHeader + 256*4
	hashSize    = 20
	cacheAfter  = 64 // lookups after which the index is read into memory
)

var errBadIndex = errors.New("not a pack index of version 2, or truncated")

func openPackIndex(path string) (*packIndex, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	x := &packIndex{file: file}
	if err := x.readHeader(); err != nil {
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

func (x *packIndex) readHeader() error {
	info, err := x.file.Stat()
	if err != nil {
		return err
	}
	x.size = info.Size()
	header := make([]byte, indexNames)
	if _, err := x.file.ReadAt(header, 0); err != nil || !bytes.Equal(header[:indexHeader], []byte{255, 't', 'O', 'c', 0, 0, 0, 2}) {
		return errBadIndex
	}
	for i := range x.fanout {
		x.fanout[i] = binary.BigEndian.Uint32(header[indexHeader+4*i:])
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

// read returns length bytes of the index.
func (x *packIndex) read(offset, length int64) ([]byte, error) {
	if offset < 0 || length < 0 || offset+length > x.size {
		return nil, errBadIndex
	}
	if cached := x.cached.Load(); cached != nil {
		return (*cached)[offset : offset+length], nil
	}
	b := make([]byte, length)
	_, err := x.file.ReadAt(b, offset)
	return b, err
}

// loadAll reads the index into memory for all later lookups.
func (x *packIndex) loadAll() {
	x.load.Do(func() {
		content, err := io.ReadAll(io.NewSectionReader(x.file, 0, x.size))
		if err == nil && int64(len(content)) == x.size {
			x.cached.Store(&content)
		}
	})
}

// find returns the position of a hash in the index, or -1.
func (x *packIndex) find(h ID) (int64, error) {
	if h.size != hashSize {
		return -1, nil
	}
	if x.lookups.Add(1) == cacheAfter {
		x.loadAll()
	}
	low, high := int64(0), int64(x.fanout[h.sum[0]])
	if h.sum[0] > 0 {
		low = int64(x.fanout[h.sum[0]-1])
	}
	names, err := x.read(indexNames+low*hashSize, (high-low)*hashSize)
	if err != nil {
		return -1, err
	}
	at := func(i int) []byte { return names[i*hashSize : (i+1)*hashSize] }
	from, to := 0, int(high-low)
	for from < to {
		middle := (from + to) / 2
		switch bytes.Compare(at(middle), h.sum[:hashSize]) {
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

func (x *packIndex) contains(h ID) (bool, error) {
	i, err := x.find(h)
	return i >= 0, err
}

// findOffset returns the offset of an object in the pack.
func (x *packIndex) findOffset(h ID) (int64, error) {
	i, err := x.find(h)
	if err != nil {
		return 0, err
	}
	if i < 0 {
		return 0, plumbing.ErrObjectNotFound
	}
	return x.offset(i)
}

// offset returns the offset in the pack of the i-th object in the index.
func (x *packIndex) offset(i int64) (int64, error) {
	part, err := x.read(x.offsets()+4*i, 4)
	if err != nil {
		return 0, err
	}
	short := binary.BigEndian.Uint32(part)
	if short&(1<<31) == 0 {
		return int64(short), nil
	}
	if part, err = x.read(x.offsets64()+8*int64(short&^(1<<31)), 8); err != nil {
		return 0, err
	}
	long := binary.BigEndian.Uint64(part)
	if long > 1<<62 {
		return 0, errBadIndex
	}
	return int64(long), nil
}

// FindHash returns the hash of the object at an offset. go-git uses it only to look up a delta's base in its
// cache. During the first lookups it returns a made-up hash, a cache miss, which is cheaper than sorting all offsets.
func (x *packIndex) FindHash(offset int64) (plumbing.Hash, error) {
	var h plumbing.Hash
	if x.lookups.Add(1) < cacheAfter {
		copy(h[:], "\xffnot a name\xff")
		binary.BigEndian.PutUint64(h[12:], uint64(offset))
		return h, nil
	}
	x.loadAll()
	x.reverse.Do(x.sortByOffset)
	i, found := slices.BinarySearchFunc(x.byOffset, offset, func(i uint32, offset int64) int {
		at, err := x.offset(int64(i))
		if err != nil {
			return -1
		}
		return cmp.Compare(at, offset)
	})
	if !found {
		return h, plumbing.ErrObjectNotFound
	}
	name, err := x.read(indexNames+int64(x.byOffset[i])*hashSize, hashSize)
	copy(h[:], name)
	return h, err
}

func (x *packIndex) sortByOffset() {
	offsets := make([]int64, x.count())
	x.byOffset = make([]uint32, x.count())
	for i := range offsets {
		x.byOffset[i] = uint32(i)
		offset, err := x.offset(int64(i))
		if err != nil {
			x.byOffset = nil
			return
		}
		offsets[i] = offset
	}
	slices.SortFunc(x.byOffset, func(a, b uint32) int { return cmp.Compare(offsets[a], offsets[b]) })
}

// Contains implements [idxfile.Index], as do the methods below.
func (x *packIndex) Contains(h plumbing.Hash) (bool, error) { return x.contains(IDOf(h[:])) }

// FindOffset returns the offset of an object in the pack.
func (x *packIndex) FindOffset(h plumbing.Hash) (int64, error) { return x.findOffset(IDOf(h[:])) }

// Count returns the number of objects.
func (x *packIndex) Count() (int64, error) { return x.count(), nil }

// The rest of [idxfile.Index] is not used.
func (x *packIndex) FindCRC32(plumbing.Hash) (uint32, error)     { return 0, errors.ErrUnsupported }
func (x *packIndex) Entries() (idxfile.EntryIter, error)         { return nil, errors.ErrUnsupported }
func (x *packIndex) EntriesByOffset() (idxfile.EntryIter, error) { return nil, errors.ErrUnsupported }
