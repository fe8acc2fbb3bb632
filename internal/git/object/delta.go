package object

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"math"
)

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
	for _, size := range []*int64{&from, &to} {
		n, err := binary.ReadUvarint(in)
		if err != nil {
			return 0, 0, noEOF(err)
		}
		if n > math.MaxInt64 {
			return 0, 0, errDelta
		}
		*size = int64(n)
	}
	return from, to, nil
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
