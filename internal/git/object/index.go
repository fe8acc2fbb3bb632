package object

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
)

// packIndex looks up objects in a pack index of version 2. A sync of a small push needs few objects, so the
// index is read into memory only after many lookups. It is safe for concurrent use.
type packIndex struct {
	file   *os.File
	size   int64
	format Format
	fanout [256]uint32

	hashSize, count    int64 // bytes of a hash, and how many
	offsets, offsets64 int64 // where the offsets in the pack begin, and those above 31 bits

	lookups atomic.Int64
	load    sync.Once
	cached  atomic.Pointer[[]byte] // the whole index; nil until loaded
}

const (
	indexHeader = 8
	indexNames  = indexHeader + 256*4
	cacheAfter  = 64 // lookups after which the index is read into memory
)

var errBadIndex = errors.New("not a pack index of version 2, or truncated")

func openPackIndex(path string) (*packIndex, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	x := &packIndex{file: file}
	if len(filepath.Base(path)) == len("pack-.idx")+2*SHA256.Size() { // named after the pack's checksum
		x.format = SHA256
	}
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
	return index.count, nil
}

func (x *packIndex) readHeader() error {
	info, err := x.file.Stat()
	if err != nil {
		return err
	}
	x.size = info.Size()
	header := make([]byte, indexNames)
	if _, err := x.file.ReadAt(header, 0); err != nil ||
		!bytes.Equal(header[:indexHeader], []byte{255, 't', 'O', 'c', 0, 0, 0, 2}) {
		return errBadIndex
	}
	for i := range x.fanout {
		x.fanout[i] = binary.BigEndian.Uint32(header[indexHeader+4*i:])
		if i > 0 && x.fanout[i] < x.fanout[i-1] {
			return errBadIndex
		}
	}
	x.hashSize, x.count = int64(x.format.Size()), int64(x.fanout[255])
	x.offsets = indexNames + x.count*x.hashSize + 4*x.count // behind the names and the checksums
	x.offsets64 = x.offsets + 4*x.count
	if x.size < x.offsets64+2*x.hashSize {
		return errBadIndex
	}
	return nil
}

func (x *packIndex) close() { _ = x.file.Close() }

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
	hashSize := x.hashSize
	if int64(h.size) != hashSize {
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
	at := func(i int) []byte { return names[int64(i)*hashSize : int64(i+1)*hashSize] }
	i, found := sort.Find(int(high-low), func(i int) int { return bytes.Compare(h.sum[:hashSize], at(i)) })
	if !found {
		return -1, nil
	}
	return low + int64(i), nil
}

// findOffset returns the offset of an object in the pack.
func (x *packIndex) findOffset(h ID) (int64, error) {
	i, err := x.find(h)
	if err != nil {
		return 0, err
	}
	if i < 0 {
		return 0, ErrNotFound
	}
	return x.offset(i)
}

// offset returns the offset in the pack of the i-th object in the index.
func (x *packIndex) offset(i int64) (int64, error) {
	part, err := x.read(x.offsets+4*i, 4)
	if err != nil {
		return 0, err
	}
	short := binary.BigEndian.Uint32(part)
	if short&(1<<31) == 0 {
		return int64(short), nil
	}
	if part, err = x.read(x.offsets64+8*int64(short&^(1<<31)), 8); err != nil {
		return 0, err
	}
	long := binary.BigEndian.Uint64(part)
	if long > 1<<62 {
		return 0, errBadIndex
	}
	return int64(long), nil
}

// id returns the ID of the i-th object in the index.
func (x *packIndex) id(i int64) (ID, error) {
	raw, err := x.read(indexNames+i*x.hashSize, x.hashSize)
	if err != nil {
		return ZeroID, err
	}
	return IDOf(raw), nil
}

// inOrder returns the positions of all objects in the index, by their offsets in the pack.
func (x *packIndex) inOrder() ([]uint32, error) {
	x.loadAll()
	order, offsets := make([]uint32, x.count), make([]int64, x.count)
	for i := range order {
		offset, err := x.offset(int64(i))
		if err != nil {
			return nil, err
		}
		order[i], offsets[i] = uint32(i), offset
	}
	slices.SortFunc(order, func(a, b uint32) int { return cmp.Compare(offsets[a], offsets[b]) })
	return order, nil
}
