package serve

import (
	"bytes"
	"context"
	"errors"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"

	"lockstep/internal/git/object"
)

// isThinBase reports whether a delta may have a base that the client has. If a walk has found that only after
// selecting the object, it is sent too, and git index-pack before 2.50 refuses a base that it can take from
// both.
func (p *packWriter) isThinBase(id object.ID, at object.Place) bool {
	return p.thin && p.held.has(id, at) && !p.sent.has(id, at)
}

// writeDelta writes an object as a delta on its hint, if that takes less than limit bytes. The store may have
// lost a hint that the client has.
func (p *packWriter) writeDelta(id object.ID, limit int64) (done bool, err error) {
	base, ok := p.hints[id]
	if !ok {
		return false, nil
	}
	place, err := p.stored.Locate(base)
	if errors.Is(err, object.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, object.Corruptf("object %s: %w", base, err)
	}
	written, err := p.offset(base, place)
	if err != nil {
		return false, object.Corruptf("object %s: %w", base, err)
	}
	chain := 0
	if written != 0 {
		chain = p.chains[base]
	}
	if written == 0 && !p.isThinBase(base, place) || chain >= maxDeltaChain {
		return false, nil
	}
	size, packed, err := p.delta(id, base)
	if err != nil || packed == nil || int64(len(packed)) >= limit {
		return false, err
	}
	header := object.AppendEntry(nil, plumbing.REFDeltaObject, int64(size), 0, base)
	if written != 0 && p.ofs {
		header = object.AppendEntry(nil, plumbing.OFSDeltaObject, int64(size), p.at-written, object.ZeroID)
	}
	p.chains[id] = chain + 1
	if _, err := p.Write(header); err != nil {
		return true, err
	}
	_, err = p.Write(packed)
	return true, err
}

// delta returns an object as a compressed delta on base, and the size of the delta; nil if that is of no use.
func (p *packWriter) delta(id, base object.ID) (size int, packed []byte, err error) {
	if context.Cause(p.ctx) != nil {
		return 0, nil, context.Cause(p.ctx)
	}
	kind, target, ok, err := p.objects.Content(id, maxDeltaSize)
	if err != nil {
		return 0, nil, object.Corruptf("object %s: %w", id, err)
	}
	if !ok || len(target) < minDeltaSize {
		return 0, nil, nil
	}
	baseKind, from, ok, err := p.objects.Content(base, maxDeltaSize)
	if errors.Is(err, object.ErrNotFound) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, object.Corruptf("object %s: %w", base, err)
	}
	if !ok || kind != baseKind {
		return 0, nil, nil
	}
	delta := packfile.DiffDelta(from, target)
	if len(delta) > len(target)/2 {
		return 0, nil, nil
	}
	var out bytes.Buffer
	p.zlib.Reset(&out)
	if _, err := p.zlib.Write(delta); err != nil {
		return 0, nil, err
	}
	if err := p.zlib.Close(); err != nil {
		return 0, nil, err
	}
	return len(delta), out.Bytes(), nil
}
