package serve

import (
	"compress/zlib"
	"encoding/binary"
	"hash"
	"io"

	"github.com/go-git/go-git/v5/plumbing"

	"lockstep/internal/git/object"
)

// Bounds of deltas that are made for a pack.
const (
	maxDeltaSize  = 1 << 20 // bytes of an object, and of the one that it is a delta on
	minDeltaSize  = 50      // bytes of an object
	maxDeltaChain = 50      // deltas, counting only those made for this pack
	copyChunk     = 64 << 10
)

// packWriter writes a pack.
type packWriter struct {
	*selection
	ofs      bool
	out      io.Writer
	sum      hash.Hash
	at       int64               // bytes written
	offsets  []packedOffsets     // of objects in the new pack, by the pack that they come from
	unpacked map[object.ID]int64 // offsets of loose objects in the new pack
	chains   map[object.ID]int   // lengths of chains of deltas made for this pack
	zlib     *zlib.Writer
	buffer   []byte
}

// packedOffsets are the offsets of the objects of one stored pack in the new one; 0 for those not written.
type packedOffsets struct {
	moved int64   // if not 0, all objects have been moved by moved-1 bytes
	at    []int64 // otherwise, by position in the index
}

// writePack writes the pack of a selection to w.
func writePack(s *selection, ofs bool, format object.Format, w io.Writer) (err error) {
	defer object.RecoverCorrupt(&err)
	p := &packWriter{
		selection: s, ofs: ofs, sum: format.NewSum(), offsets: make([]packedOffsets, s.stored.Packs()),
		unpacked: map[object.ID]int64{}, chains: map[object.ID]int{}, buffer: make([]byte, copyChunk),
	}
	p.out = io.MultiWriter(object.CancelWriter{Ctx: s.ctx, Writer: w}, p.sum)
	p.zlib = zlib.NewWriter(p)
	header := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(s.count))
	if _, err := p.Write(header); err != nil {
		return err
	}
	for pack, n := range s.packed {
		if n == 0 {
			continue
		}
		if err := p.copyPack(pack, n); err != nil {
			return err
		}
	}
	for _, id := range s.loose {
		if err := p.writeLoose(id); err != nil {
			return err
		}
	}
	_, err = p.Write(p.sum.Sum(nil))
	return err
}

// Write appends to the pack.
func (p *packWriter) Write(b []byte) (int, error) {
	n, err := p.out.Write(b)
	p.at += int64(n)
	return n, err
}

// copyPack writes the selected objects of a stored pack, n of them, in their order.
func (p *packWriter) copyPack(pack, n int) error {
	offsets := &p.offsets[pack]
	count := p.stored.Count(pack)
	if n == count && p.ofs && !p.edges {
		body, err := p.stored.Body(pack)
		if err != nil {
			return object.Corruptf("read a pack: %w", err)
		}
		offsets.moved = p.at - packHeader + 1
		return p.copy(body)
	}
	offsets.at = make([]int64, count)
	order, err := p.stored.InOrder(pack)
	if err != nil {
		return object.Corruptf("read a pack: %w", err)
	}
	bits := p.sent.packs[pack]
	for _, i := range order {
		if bits[i/64]&(1<<(i%64)) == 0 {
			continue
		}
		if err := p.writePacked(object.Place{Pack: int32(pack), At: i}); err != nil {
			return err
		}
	}
	return nil
}

const packHeader = 12 // bytes before the first object of a pack

// offset returns where an object is in the new pack; 0 if it is not written.
func (p *packWriter) offset(id object.ID, at object.Place) (int64, error) {
	if at.Pack == object.Loose {
		return p.unpacked[id], nil
	}
	switch o := &p.offsets[at.Pack]; {
	case o.moved != 0:
		e, err := p.stored.Entry(at)
		return e.Offset + o.moved - 1, err
	case o.at != nil:
		return o.at[at.At], nil
	}
	return 0, nil
}

// writePacked writes an object of a stored pack after the objects that it is a delta on.
func (p *packWriter) writePacked(at object.Place) error {
	chain := []object.Place{at}
	for {
		top := chain[len(chain)-1]
		if written, err := p.offset(object.ZeroID, top); err != nil || written != 0 {
			chain = chain[:len(chain)-1]
			if err != nil {
				return object.Corruptf("read a pack: %w", err)
			}
			break
		}
		e, err := p.stored.Entry(top)
		if err != nil {
			return object.Corruptf("read a pack: %w", err)
		}
		// A base is in the same pack. If the object is sent from another pack, that one was written before.
		if !e.Kind.IsDelta() || !p.sent.has(object.ZeroID, e.Base) {
			break
		}
		if chain = append(chain, e.Base); len(chain) > p.stored.Count(int(at.Pack)) {
			return object.Corruptf("read a pack: the bases of a delta form a cycle")
		}
	}
	for i := len(chain) - 1; i >= 0; i-- {
		if err := p.writeEntry(chain[i]); err != nil {
			return err
		}
	}
	return nil
}

// writeEntry writes an object of a stored pack, as it is stored if possible.
func (p *packWriter) writeEntry(at object.Place) error {
	id, err := p.stored.ID(at)
	if err != nil {
		return object.Corruptf("read a pack: %w", err)
	}
	e, err := p.stored.Entry(at)
	if err != nil {
		return object.Corruptf("object %s: %w", id, err)
	}
	p.offsets[at.Pack].at[at.At] = p.at
	if !e.Kind.IsDelta() {
		if done, err := p.writeDelta(id, e.Data.Size()); done || err != nil {
			return err
		}
		return p.copyEntry(e, e.Kind, 0, object.ZeroID)
	}
	base, err := p.stored.ID(e.Base)
	if err != nil {
		return object.Corruptf("object %s: %w", id, err)
	}
	place := e.Base
	if !p.sent.has(base, place) { // it may be sent from another pack
		if place, err = p.stored.Locate(base); err != nil {
			return object.Corruptf("object %s: %w", base, err)
		}
	}
	written, err := p.offset(base, place)
	switch {
	case err != nil:
		return object.Corruptf("object %s: %w", base, err)
	case written != 0 && p.ofs:
		return p.copyEntry(e, plumbing.OFSDeltaObject, p.at-written, object.ZeroID)
	case written != 0, p.isThinBase(base, place):
		return p.copyEntry(e, plumbing.REFDeltaObject, 0, base)
	}
	if done, err := p.writeDelta(id, maxDeltaSize); done || err != nil {
		return err
	}
	return p.writeWhole(id)
}

// copyEntry writes an object with the compressed data that is stored.
func (p *packWriter) copyEntry(e object.Entry, kind plumbing.ObjectType, distance int64, base object.ID) error {
	if _, err := p.Write(object.AppendEntry(nil, kind, e.Size, distance, base)); err != nil {
		return err
	}
	return p.copy(e.Data)
}

func (p *packWriter) copy(from *io.SectionReader) error {
	n, err := io.CopyBuffer(struct{ io.Writer }{p}, struct{ io.Reader }{from}, p.buffer)
	if err != nil {
		return err
	}
	if n != from.Size() {
		return io.ErrUnexpectedEOF
	}
	return nil
}

func (p *packWriter) writeLoose(id object.ID) error {
	p.unpacked[id] = p.at
	if done, err := p.writeDelta(id, maxDeltaSize); done || err != nil {
		return err
	}
	return p.writeWhole(id)
}

// writeWhole compresses an object. It streams large ones.
func (p *packWriter) writeWhole(id object.ID) error {
	obj, err := p.objects.Object(id)
	if err != nil {
		return object.Corruptf("object %s: %w", id, err)
	}
	content, err := obj.Reader()
	if err != nil {
		return object.Corruptf("object %s: %w", id, err)
	}
	defer content.Close()
	if _, err := p.Write(object.AppendEntry(nil, obj.Kind, obj.Size, 0, object.ZeroID)); err != nil {
		return err
	}
	p.zlib.Reset(p)
	n, err := io.CopyBuffer(struct{ io.Writer }{p.zlib}, struct{ io.Reader }{content}, p.buffer)
	switch {
	case err != nil:
		return err
	case n != obj.Size:
		return object.Corruptf("object %s has %d bytes instead of %d", id, n, obj.Size)
	}
	return p.zlib.Close()
}
