package object

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"golang.org/x/sync/errgroup"
)

// resolve turns every delta into the object it stands for: first those on objects in the pack, then
// those on objects in the store.
func (r *receiver) resolve() error {
	slices.SortFunc(r.refs, func(a, b refDelta) int {
		return cmp.Or(bytes.Compare(a.base[:], b.base[:]), cmp.Compare(a.entry, b.entry))
	})
	r.begun = make([]bool, len(r.refs))
	err := r.together(func(g *errgroup.Group) error {
		for i := range r.entries {
			if e := &r.entries[i]; !e.delta && (e.child != 0 || len(r.refsOn(e.hash)) > 0) {
				g.Go(func() error { return r.lend(func(w *resolver) error { return w.fromPack(e) }) })
			}
		}
		return nil
	})
	if err == nil && r.store != nil {
		err = r.together(func(g *errgroup.Group) error {
			for i := 0; i < len(r.refs); i += len(r.refsOn(r.refs[i].base)) {
				base := r.refs[i].base
				if !r.isBegun(i) {
					g.Go(func() error { return r.lend(func(w *resolver) error { return w.fromStore(base) }) })
				}
			}
			return nil
		})
	}
	if err != nil {
		return Corruptf("apply the fetched pack: %w", err)
	}
	for i := range r.entries {
		if e := &r.entries[i]; e.hash.IsZero() {
			return Corruptf("apply the fetched pack: the base of the delta at %d is missing", e.offset)
		}
	}
	return nil
}

// lend gives work a resolver that nobody else has.
func (r *receiver) lend(work func(*resolver) error) (err error) {
	defer RecoverCorrupt(&err)
	var w *resolver
	select {
	case w = <-r.resolvers:
	default:
		w = &resolver{
			r: r, in: bufio.NewReader(nil), delta: bufio.NewReader(nil),
			chunk: make([]byte, chunkSize), spill: spill{dir: r.q.Dir},
		}
	}
	defer func() { r.resolvers <- w }()
	return work(w)
}

// refsOn returns the REF deltas on a base.
func (r *receiver) refsOn(base ID) []refDelta {
	from := r.firstRef(base)
	to := from
	for to < len(r.refs) && r.refs[to].base == base {
		to++
	}
	return r.refs[from:to]
}

func (r *receiver) firstRef(base ID) int {
	i, _ := slices.BinarySearchFunc(r.refs, base, func(d refDelta, base ID) int {
		return bytes.Compare(d.base[:], base[:])
	})
	return i
}

func (r *receiver) isBegun(i int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun[i]
}

// begin returns the REF deltas on a base to the first who asks. An object may be in a pack twice, or in
// the store as well.
func (r *receiver) begin(base ID) []refDelta {
	deltas := r.refsOn(base)
	if len(deltas) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.firstRef(base)
	if r.begun[first] {
		return nil
	}
	r.begun[first] = true
	return deltas
}

// resolver resolves trees of deltas, one at a time.
type resolver struct {
	r        *receiver
	in       *bufio.Reader // the pack, at one object
	inflated inflater      // that object
	delta    *bufio.Reader // it again, read byte by byte
	chunk    []byte
	held     int64 // bytes of content in memory
	spill    spill
}

func (w *resolver) close() { w.spill.close() }

// content is an object's content that deltas are based on.
type content struct {
	kind  plumbing.ObjectType
	size  int64
	heavy bool   // it, or what it is a delta on, is above largeObject
	small []byte // nil when it is spilled
	at    int64  // in the spill
}

func (w *resolver) readerAt(c *content) io.ReaderAt {
	if c.small != nil {
		return bytes.NewReader(c.small)
	}
	return io.NewSectionReader(&w.spill, c.at, c.size)
}

func (w *resolver) reader(c *content) io.Reader { return io.NewSectionReader(w.readerAt(c), 0, c.size) }

// base is a content and the deltas on it that are still to be resolved.
type base struct {
	content content
	child   int32 // the next OFS delta; 0 for none
	refs    []refDelta
	bottom  int64 // where the spill ended before
}

func (b *base) done() bool { return b.child == 0 && len(b.refs) == 0 }

// fromPack resolves the deltas on an object that is whole in the pack.
func (w *resolver) fromPack(e *packed) error {
	head, err := w.open(e.offset)
	if err != nil {
		return err
	}
	root := base{content: content{kind: e.kind, size: head.size, heavy: head.size > LargeObject}, child: e.child, refs: w.r.begin(e.hash)}
	if root.done() {
		return nil
	}
	_, err = w.hold(&root.content, false, func(out io.Writer) error {
		_, err := io.CopyBuffer(out, &w.inflated, w.chunk)
		return err
	})
	if err != nil {
		return fmt.Errorf("the object at %d: %w", e.offset, err)
	}
	return w.tree(root)
}

// fromStore resolves the deltas on an object that the store has. One that it has not may still come
// out of other deltas.
func (w *resolver) fromStore(h ID) error {
	root := base{}
	if err := w.load(&root.content, h); err != nil {
		if errors.Is(err, plumbing.ErrObjectNotFound) {
			return nil
		}
		return fmt.Errorf("base %s: %w", h, err)
	}
	if root.refs = w.r.begin(h); root.done() {
		w.release(&root)
		return nil
	}
	if !w.r.loose {
		if err := w.r.addBase(h, &root.content, w.reader(&root.content)); err != nil {
			return err
		}
	}
	return w.tree(root)
}

// load reads an object from the store, having checked that it is what it is called.
func (w *resolver) load(c *content, h ID) error {
	w.r.storeMu.Lock()
	defer w.r.storeMu.Unlock()
	obj, err := w.r.store.EncodedObject(plumbing.AnyObject, h)
	if err != nil {
		return err
	}
	reader, err := obj.Reader()
	if err != nil {
		return err
	}
	defer reader.Close()
	*c = content{kind: obj.Type(), size: obj.Size(), heavy: obj.Size() > LargeObject}
	sum, err := w.hold(c, true, func(out io.Writer) error {
		_, err := io.CopyBuffer(out, onlyReader{reader}, w.chunk)
		return err
	})
	if err == nil && sum != h {
		err = fmt.Errorf("it hashes to %s", sum)
	}
	return err
}

// tree resolves all deltas on root, the deltas on those, and so on. A base is let go of before the last
// delta on it is gone into, so that a chain of any length takes no more than two contents.
func (w *resolver) tree(root base) error {
	stack := []base{root}
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		if top.done() {
			w.release(top)
			stack = stack[:len(stack)-1]
			continue
		}
		bottom, i := w.spill.end, w.next(top)
		c, err := w.apply(&top.content, i)
		if err != nil {
			return fmt.Errorf("the delta at %d: %w", w.r.entries[i].offset, err)
		}
		below := base{content: c, child: w.r.entries[i].child, refs: w.r.begin(w.r.entries[i].hash), bottom: bottom}
		switch {
		case below.done():
			w.release(&below)
		case top.done():
			below.bottom = top.bottom
			w.forget(&top.content)
			*top = below
		default:
			stack = append(stack, below)
		}
	}
	return nil
}

// next takes the next delta off b's.
func (w *resolver) next(b *base) int32 {
	if i := b.child; i != 0 {
		b.child = w.r.entries[i].sibling
		return i
	}
	i := b.refs[0].entry
	b.refs = b.refs[1:]
	return i
}

// release lets go of a base that is the last one held.
func (w *resolver) release(b *base) {
	w.forget(&b.content)
	w.spill.end = b.bottom
}

// forget lets go of a content wherever it is.
func (w *resolver) forget(c *content) {
	if c.small == nil {
		w.spill.punch(c.at, c.size)
		return
	}
	w.held -= c.size
	c.small = nil
}

// open reads up to the content of the object at an offset.
func (w *resolver) open(offset int64) (objectHead, error) {
	w.in.Reset(io.NewSectionReader(w.r, offset, w.r.end-offset))
	head, err := readObjectHead(w.in)
	if err != nil {
		return head, noEOF(err)
	}
	return head, w.inflated.reset(w.r.ctx, w.in, head.size)
}

// apply resolves the i-th object, a delta on from.
func (w *resolver) apply(from *content, i int32) (content, error) {
	e := &w.r.entries[i]
	if _, err := w.open(e.offset); err != nil {
		return content{}, err
	}
	w.delta.Reset(&w.inflated)
	baseSize, size, err := readDeltaSizes(w.delta)
	if err != nil {
		return content{}, err
	}
	if baseSize != from.size {
		return content{}, fmt.Errorf("it wants a base of %d bytes, not %d", baseSize, from.size)
	}
	if err := w.r.admit(from.kind, size); err != nil {
		return content{}, err
	}
	c := content{kind: from.kind, size: size, heavy: from.heavy || size > LargeObject}
	e.kind = c.kind
	e.hash, err = w.hold(&c, true, func(out io.Writer) error {
		return w.patch(out, w.readerAt(from), from.size, size)
	})
	w.r.taken(1)
	switch {
	case err != nil:
		return c, err
	case w.r.loose:
		return c, w.r.writeLoose(e.hash, c.kind, size, w.reader(&c))
	case c.heavy:
		return c, w.r.addWhole(i, &c, w.reader(&c))
	}
	return c, nil
}

// hold has fill write c.size bytes, in memory or into the spill, and returns what they hash to if asked.
func (w *resolver) hold(c *content, hash bool, fill func(io.Writer) error) (h ID, err error) {
	if c.size <= LargeObject && w.held+c.size <= int64(CacheSize) {
		return w.holdSmall(c, hash, fill)
	}
	c.at = w.spill.end
	hasher := plumbing.NewHasher(c.kind, c.size)
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
	return hasher.Sum(), nil
}

func (w *resolver) holdSmall(c *content, hash bool, fill func(io.Writer) error) (h ID, err error) {
	out := bytes.NewBuffer(make([]byte, 0, c.size))
	if err := fill(onlyWriter{out}); err != nil {
		return h, err
	}
	if int64(out.Len()) != c.size {
		return h, errSize
	}
	c.small = out.Bytes()
	w.held += c.size
	if hash {
		h = plumbing.ComputeHash(c.kind, c.small)
	}
	return h, nil
}

const (
	maxDeltaHead = 20 // bytes of the two sizes that a delta begins with
	maxDeltaStep = 8  // bytes of an instruction, which adds one byte at least
)

var errDelta = errors.New("its instructions make no sense")

// readDeltaSizes returns the sizes of a delta's base and of its result.
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

// patch follows a delta's instructions, which must make size bytes.
func (w *resolver) patch(out io.Writer, from io.ReaderAt, fromSize, size int64) error {
	for size > 0 {
		op, err := w.delta.ReadByte()
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
			err = w.insert(out, int(n))
		default:
			var offset int64
			if offset, n, err = w.readCopy(op); err != nil {
				return err
			}
			if n > size || offset+n > fromSize {
				return errDelta
			}
			err = w.copy(out, from, offset, n)
		}
		if err != nil {
			return err
		}
		size -= n
	}
	if _, err := w.delta.ReadByte(); !errors.Is(err, io.EOF) {
		return cmp.Or(err, errDelta)
	}
	return nil
}

// insert copies n bytes, at most 127, out of the delta.
func (w *resolver) insert(out io.Writer, n int) error {
	if _, err := io.ReadFull(w.delta, w.chunk[:n]); err != nil {
		return noEOF(err)
	}
	_, err := out.Write(w.chunk[:n])
	return err
}

// readCopy reads what an instruction copies from the base. The bits of op say which bytes are there.
func (w *resolver) readCopy(op byte) (offset, n int64, err error) {
	for bit := range 7 {
		if op>>bit&1 == 0 {
			continue
		}
		b, err := w.delta.ReadByte()
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

func (w *resolver) copy(out io.Writer, from io.ReaderAt, offset, n int64) error {
	for n > 0 {
		part := w.chunk[:min(n, chunkSize)]
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
