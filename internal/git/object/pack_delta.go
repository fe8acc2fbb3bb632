package object

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"

	"github.com/go-git/go-git/v5/plumbing"
	"golang.org/x/sync/errgroup"
)

// resolve resolves all deltas: first those with a base in the pack, then those with a base in the store.
func (r *receiver) resolve() error {
	slices.SortFunc(r.refs, func(a, b refDelta) int {
		return cmp.Or(a.base.Compare(b.base), cmp.Compare(a.entry, b.entry))
	})
	err := r.runPhase(func(g *errgroup.Group) error {
		for i := range r.entries {
			if e := &r.entries[i]; !e.delta && (e.child != 0 || len(r.refsOn(e.hash)) > 0) {
				g.Go(func() error { return r.withResolver(func(w *resolver) error { return w.resolvePacked(e) }) })
			}
		}
		return nil
	})
	if err != nil {
		return Corruptf("apply the fetched pack: %w", err)
	}
	if r.store != nil {
		if err := r.runPhase(r.resolveOnStored); err != nil {
			return Corruptf("apply the fetched pack: %w", err)
		}
	}
	for i := range r.entries {
		if e := &r.entries[i]; e.hash.IsZero() {
			return Corruptf("apply the fetched pack: the base of the delta at %d is missing", e.offset)
		}
	}
	return nil
}

// resolveOnStored resolves the deltas whose bases the store has.
func (r *receiver) resolveOnStored(g *errgroup.Group) error {
	for i := 0; i < len(r.refs); i += len(r.refsOn(r.refs[i].base)) {
		base := r.refs[i].base
		r.mu.Lock()
		claimed := r.refs[i].claimed
		r.mu.Unlock()
		if !claimed {
			g.Go(func() error { return r.withResolver(func(w *resolver) error { return w.resolveStored(base) }) })
		}
	}
	return nil
}

// withResolver calls work with a resolver that no other goroutine uses.
func (r *receiver) withResolver(work func(*resolver) error) (err error) {
	defer RecoverCorrupt(&err)
	var w *resolver
	select {
	case w = <-r.resolvers:
	default:
		w = &resolver{
			r: r, in: bufio.NewReader(nil), patcher: newPatcher(), spill: spill{dir: r.q.Dir},
		}
	}
	defer func() { r.resolvers <- w }()
	return work(w)
}

// refsOn returns the REF deltas on a base.
func (r *receiver) refsOn(base ID) []refDelta {
	from := sort.Search(len(r.refs), func(i int) bool { return r.refs[i].base.Compare(base) >= 0 })
	to := from
	for to < len(r.refs) && r.refs[to].base == base {
		to++
	}
	return r.refs[from:to]
}

// claim returns the REF deltas on a base to its first caller, and none to later ones: an object may be in the
// pack twice, or also in the store.
func (r *receiver) claim(base ID) []refDelta {
	deltas := r.refsOn(base)
	if len(deltas) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if deltas[0].claimed {
		return nil
	}
	deltas[0].claimed = true
	return deltas
}

// resolver resolves trees of deltas, one at a time.
type resolver struct {
	r        *receiver
	in       *bufio.Reader // the pack, at one object
	inflated inflater      // the inflated object
	patcher
	inMemory int64 // bytes of content held in memory
	spill    spill
}

func (w *resolver) close() { w.spill.close() }

// content is the content of a base object.
type content struct {
	kind  plumbing.ObjectType
	size  int64
	large bool   // this object, or one it is a delta on, is above LargeObject
	small []byte // nil if spilled
	at    int64  // offset in the spill
}

func (w *resolver) readerAt(c *content) io.ReaderAt {
	if c.small != nil {
		return bytes.NewReader(c.small)
	}
	return io.NewSectionReader(&w.spill, c.at, c.size)
}

func (w *resolver) reader(c *content) io.Reader { return io.NewSectionReader(w.readerAt(c), 0, c.size) }

// base is a base object and the deltas on it that are not yet resolved.
type base struct {
	content  content
	child    int32 // the next OFS delta; 0 for none
	refs     []refDelta
	spillEnd int64 // end of the spill before this content
}

func (b *base) done() bool { return b.child == 0 && len(b.refs) == 0 }

// resolvePacked resolves the deltas on an object in the pack that is not a delta.
func (w *resolver) resolvePacked(e *packed) error {
	header, err := w.open(e.offset)
	if err != nil {
		return err
	}
	root := base{
		content: content{kind: e.kind, size: header.size, large: header.size > LargeObject}, child: e.child,
		refs: w.r.claim(e.hash),
	}
	if root.done() {
		return nil
	}
	_, err = w.buffer(&root.content, false, func(out io.Writer) error {
		_, err := io.CopyBuffer(out, &w.inflated, w.chunk)
		return err
	})
	if err != nil {
		return fmt.Errorf("the object at %d: %w", e.offset, err)
	}
	return w.resolveTree(root)
}

// resolveStored resolves the deltas on an object of the store. An object missing from the store may still be the
// result of another delta.
func (w *resolver) resolveStored(h ID) error {
	root := base{}
	if err := w.load(&root.content, h); err != nil {
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		return fmt.Errorf("base %s: %w", h, err)
	}
	if root.refs = w.r.claim(h); root.done() {
		w.release(&root)
		return nil
	}
	if !w.r.loose {
		if err := w.r.addBase(h, &root.content, w.reader(&root.content)); err != nil {
			return err
		}
	}
	return w.resolveTree(root)
}

// load reads an object from the store and verifies its hash.
func (w *resolver) load(c *content, h ID) error {
	w.r.storeMu.Lock()
	defer w.r.storeMu.Unlock()
	obj, err := w.r.store.Object(h)
	if err != nil {
		return err
	}
	reader, err := obj.Reader()
	if err != nil {
		return err
	}
	defer reader.Close()
	*c = content{kind: obj.Kind, size: obj.Size, large: obj.Size > LargeObject}
	sum, err := w.buffer(c, true, func(out io.Writer) error {
		_, err := io.CopyBuffer(out, onlyReader{reader}, w.chunk)
		return err
	})
	if err != nil {
		return err
	}
	if sum != h {
		return fmt.Errorf("content has hash %s", sum)
	}
	return nil
}

// resolveTree resolves all deltas on root, recursively. It drops a base before it descends into the last delta on it,
// so that a chain of any length holds at most two contents.
func (w *resolver) resolveTree(root base) error {
	stack := []base{root}
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		if top.done() {
			w.release(top)
			stack = stack[:len(stack)-1]
			continue
		}
		spillEnd, i := w.spill.end, w.nextDelta(top)
		c, err := w.apply(&top.content, i)
		if err != nil {
			return fmt.Errorf("the delta at %d: %w", w.r.entries[i].offset, err)
		}
		below := base{content: c, child: w.r.entries[i].child, refs: w.r.claim(w.r.entries[i].hash), spillEnd: spillEnd}
		switch {
		case below.done():
			w.release(&below)
		case top.done():
			below.spillEnd = top.spillEnd
			w.drop(&top.content)
			*top = below
		default:
			stack = append(stack, below)
		}
	}
	return nil
}

// nextDelta removes and returns the next delta on b.
func (w *resolver) nextDelta(b *base) int32 {
	if i := b.child; i != 0 {
		b.child = w.r.entries[i].sibling
		return i
	}
	i := b.refs[0].entry
	b.refs = b.refs[1:]
	return i
}

// release drops a base, which must be the top of the stack.
func (w *resolver) release(b *base) {
	w.drop(&b.content)
	w.spill.end = b.spillEnd
}

// drop frees the memory or disk space of a content.
func (w *resolver) drop(c *content) {
	if c.small == nil {
		w.spill.free(c.at, c.size)
		return
	}
	w.inMemory -= c.size
	c.small = nil
}

// open reads the header of the object at an offset and prepares to read its content.
func (w *resolver) open(offset int64) (objectHeader, error) {
	w.in.Reset(io.NewSectionReader(w.r, offset, w.r.end-offset))
	header, err := readObjectHeader(w.in, w.r.format)
	if err != nil {
		return header, noEOF(err)
	}
	return header, w.inflated.reset(w.r.ctx, w.in, header.size)
}

// apply resolves the i-th object, which is a delta on from.
func (w *resolver) apply(from *content, i int32) (content, error) {
	e := &w.r.entries[i]
	if _, err := w.open(e.offset); err != nil {
		return content{}, err
	}
	baseSize, size, err := w.begin(&w.inflated)
	if err != nil {
		return content{}, err
	}
	if baseSize != from.size {
		return content{}, fmt.Errorf("needs a base of %d bytes; the base has %d", baseSize, from.size)
	}
	if err := w.r.checkSize(from.kind, size); err != nil {
		return content{}, err
	}
	c := content{kind: from.kind, size: size, large: from.large || size > LargeObject}
	e.kind = c.kind
	e.hash, err = w.buffer(&c, true, func(out io.Writer) error {
		return w.patch(out, w.readerAt(from), from.size, size)
	})
	w.r.received(1)
	switch {
	case err != nil:
		return c, err
	case w.r.loose:
		return c, w.r.writeLoose(e.hash, c.kind, size, w.reader(&c))
	case c.large:
		return c, w.r.addFull(i, &c, w.reader(&c))
	}
	return c, nil
}

// buffer lets fill write c.size bytes to memory or to the spill, and returns their hash if hash is set.
func (w *resolver) buffer(c *content, hash bool, fill func(io.Writer) error) (h ID, err error) {
	if c.size <= LargeObject && w.inMemory+c.size <= int64(CacheSize) {
		return w.bufferInMemory(c, hash, fill)
	}
	c.at = w.spill.end
	hasher := w.r.format.NewHasher(c.kind, c.size)
	var out io.Writer = &w.spill
	if hash {
		out = io.MultiWriter(hasher, &w.spill)
	}
	buffered := bufio.NewWriterSize(CancelWriter{w.r.ctx, out}, chunkSize)
	if err := fill(onlyWriter{buffered}); err != nil {
		return h, err
	}
	if err := buffered.Flush(); err != nil {
		return h, err
	}
	if w.spill.end-c.at != c.size {
		return h, errSize
	}
	return hasher.ID(), nil
}

func (w *resolver) bufferInMemory(c *content, hash bool, fill func(io.Writer) error) (h ID, err error) {
	out := bytes.NewBuffer(make([]byte, 0, c.size))
	if err := fill(onlyWriter{out}); err != nil {
		return h, err
	}
	if int64(out.Len()) != c.size {
		return h, errSize
	}
	c.small = out.Bytes()
	w.inMemory += c.size
	if hash {
		h = w.r.format.Hash(c.kind, c.small)
	}
	return h, nil
}
