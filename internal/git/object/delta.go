package object

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
)

const (
	deltaBlock   = 16 // bytes; matches shorter than this are not found
	deltaChain   = 32 // blocks compared for one position
	maxDeltaCopy = 0xffffff
	maxInsert    = 127
)

// DeltaIndex finds the blocks of a base in other contents. It takes about half as much memory as the base.
type DeltaIndex struct {
	base  []byte
	shift uint
	heads []int32 // by hash: number of the last block, plus 1
	nexts []int32 // by block: number of the previous one with the same hash, plus 1
}

// NewDeltaIndex returns an index of base, which must not change.
func NewDeltaIndex(base []byte) *DeltaIndex {
	blocks := len(base) / deltaBlock
	size := bits.Len(uint(max(blocks, 1))) + 1
	x := &DeltaIndex{base: base, shift: uint(64 - size), heads: make([]int32, 1<<size), nexts: make([]int32, blocks)}
	var last uint64
	for i := blocks - 1; i >= 0; i-- { // so that the first blocks are found first
		hash := blockHash(base[i*deltaBlock:])
		if i < blocks-1 && hash == last {
			x.heads[hash>>x.shift] = int32(i + 1) // a run of equal blocks counts once, from its start
			x.nexts[i] = x.nexts[i+1]
			continue
		}
		last = hash
		at := &x.heads[hash>>x.shift]
		x.nexts[i], *at = *at, int32(i+1)
	}
	return x
}

// blockHash hashes the first deltaBlock bytes.
func blockHash(b []byte) uint64 {
	low, high := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	return (low*0x9e3779b97f4a7c15 ^ bits.RotateLeft64(high, 29)) * 0xff51afd7ed558ccd
}

// Delta returns a delta that turns the base into target, in Git's format; ok is false if it would be longer
// than limit bytes.
func (x *DeltaIndex) Delta(target []byte, limit int) (delta []byte, ok bool) {
	out := binary.AppendUvarint(nil, uint64(len(x.base)))
	out = binary.AppendUvarint(out, uint64(len(target)))
	pending, i := 0, 0 // target[pending:i] is not yet in the delta
	for i+deltaBlock <= len(target) {
		from, length := x.longest(target, i)
		if length < deltaBlock {
			if i++; i-pending > limit {
				return nil, false
			}
			continue
		}
		back := 0
		for back < i-pending && back < from && x.base[from-back-1] == target[i-back-1] {
			back++
		}
		out = appendInserts(out, target[pending:i-back])
		out = appendCopies(out, from-back, length+back)
		if i += length; len(out) > limit {
			return nil, false
		}
		pending = i
	}
	out = appendInserts(out, target[pending:])
	return out, len(out) <= limit
}

// longest returns the longest match of the target from a position.
func (x *DeltaIndex) longest(target []byte, at int) (from, length int) {
	rest := target[at:]
	next := x.heads[blockHash(rest)>>x.shift]
	for n := 0; next != 0 && n < deltaChain; n++ {
		start := int(next-1) * deltaBlock
		if l := common(x.base[start:], rest); l > length {
			from, length = start, l
		}
		next = x.nexts[next-1]
	}
	return from, length
}

// common returns the length of the common prefix.
func common(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	for ; i+8 <= n; i += 8 {
		if diff := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); diff != 0 {
			return i + bits.TrailingZeros64(diff)/8
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

func appendInserts(out, text []byte) []byte {
	for len(text) > 0 {
		n := min(len(text), maxInsert)
		out = append(append(out, byte(n)), text[:n]...)
		text = text[n:]
	}
	return out
}

func appendCopies(out []byte, from, length int) []byte {
	for length > 0 {
		n := min(length, maxDeltaCopy)
		op, at := byte(0x80), len(out)
		out = append(out, 0)
		for bit := range 4 {
			if b := byte(from >> (8 * bit)); b != 0 {
				op, out = op|1<<bit, append(out, b)
			}
		}
		for bit := range 3 {
			if b := byte(n >> (8 * bit)); b != 0 && n != 0x10000 {
				op, out = op|0x10<<bit, append(out, b)
			}
		}
		out[at] = op
		from, length = from+n, length-n
	}
	return out
}

// patcher applies deltas. It reuses its buffers.
type patcher struct {
	delta *bufio.Reader
	chunk []byte
}

func newPatcher() patcher { return patcher{bufio.NewReader(nil), make([]byte, chunkSize)} }

// begin reads the start of a delta: the sizes of its base and of its result.
func (p *patcher) begin(delta io.Reader) (from, to int64, err error) {
	p.delta.Reset(delta)
	return readDeltaSizes(p.delta)
}

const (
	maxDeltaHeader = 20 // bytes of the two sizes at the start of a delta
	maxInstruction = 8  // bytes of an instruction, which adds at least one byte to the result
)

var errDelta = errors.New("invalid delta instructions")

// readDeltaSizes returns the sizes of a delta's base and result.
func readDeltaSizes(in io.ByteReader) (from, to int64, err error) {
	if from, err = readDeltaSize(in); err != nil {
		return 0, 0, err
	}
	to, err = readDeltaSize(in)
	return from, to, err
}

func readDeltaSize(in io.ByteReader) (size int64, err error) {
	for shift := 0; ; shift += 7 {
		b, err := in.ReadByte()
		if err != nil {
			return 0, noEOF(err)
		}
		if shift > 49 {
			return 0, errDelta
		}
		size |= int64(b&0x7f) << shift
		if b&0x80 == 0 {
			return size, nil
		}
	}
}

// patch applies the instructions of a delta, which must produce size bytes.
func (p *patcher) patch(out io.Writer, from io.ReaderAt, fromSize, size int64) error {
	for size > 0 {
		op, err := p.delta.ReadByte()
		if err != nil {
			return noEOF(err)
		}
		var n int64
		switch {
		case op == 0:
			return errDelta
		case op&0x80 == 0:
			if n = int64(op); n > size {
				return errDelta
			}
			err = p.insert(out, int(n))
		default:
			var offset int64
			if offset, n, err = p.readCopy(op); err != nil {
				return err
			}
			if n > size || offset+n > fromSize {
				return errDelta
			}
			err = p.copy(out, from, offset, n)
		}
		if err != nil {
			return err
		}
		size -= n
	}
	if _, err := p.delta.ReadByte(); !errors.Is(err, io.EOF) {
		return cmp.Or(err, errDelta)
	}
	return nil
}

// insert copies n bytes (at most 127) from the delta.
func (p *patcher) insert(out io.Writer, n int) error {
	if _, err := io.ReadFull(p.delta, p.chunk[:n]); err != nil {
		return noEOF(err)
	}
	_, err := out.Write(p.chunk[:n])
	return err
}

// readCopy reads the arguments of a copy instruction. The bits of op say which bytes are present.
func (p *patcher) readCopy(op byte) (offset, n int64, err error) {
	for bit := range 7 {
		if op>>bit&1 == 0 {
			continue
		}
		b, err := p.delta.ReadByte()
		if err != nil {
			return 0, 0, noEOF(err)
		}
		if bit < 4 {
			offset |= int64(b) << (8 * bit)
		} else {
			n |= int64(b) << (8 * (bit - 4))
		}
	}
	if n == 0 {
		n = 0x10000
	}
	return offset, n, nil
}

func (p *patcher) copy(out io.Writer, from io.ReaderAt, offset, n int64) error {
	for n > 0 {
		part := p.chunk[:min(n, chunkSize)]
		if _, err := from.ReadAt(part, offset); err != nil {
			return noEOF(err)
		}
		if _, err := out.Write(part); err != nil {
			return err
		}
		offset, n = offset+int64(len(part)), n-int64(len(part))
	}
	return nil
}
