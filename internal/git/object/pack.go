package object

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"os"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/go-git/go-git/v5/plumbing"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/disk"
)

// receiver takes in a fetched pack. It scans the pack once, hashing what is there whole, and then
// resolves the deltas, each tree of them from its root. What it holds in memory depends on the number
// of objects only, not on their size: a content above largeObject passes through temporary files.
type receiver struct {
	ctx    context.Context // of the receiver, or of the phase that is under way
	cancel context.CancelFunc
	limits Limits
	q      Quarantine
	file   *os.File      // the pack as it came
	end    int64         // where its objects end and its checksum begins
	loose  bool          // every object becomes a file of its own
	taken  func(n int64) // counts objects received

	entries   []packed
	refs      []refDelta // sorted by base once the scan is over
	inflated  int64      // bytes in all objects so far
	resolvers chan *resolver
	buffers   sync.Pool    // of *bytes.Buffer, for objects being hashed
	deflaters sync.Pool    // of *zlib.Writer
	files     atomic.Int64 // made so far

	mu    sync.Mutex
	begun []bool // by place in refs, of a base's first delta: somebody resolves them
	whole wholes

	storeMu sync.Mutex
	store   *Store // that a thin pack's bases are in; nil for a pack that must be complete
}

// packed is an object in a pack. A pack may have millions.
type packed struct {
	hash    ID // zero until it is known
	offset  int64
	crc     uint32 // of its bytes in the pack
	child   int32  // the last OFS delta on this object; 0 for none, as the first object cannot be one
	sibling int32  // the OFS delta on the same base before this one; 0 for none
	kind    plumbing.ObjectType
	delta   bool // it came as a delta; kind is right once the hash is known
}

// refDelta is a delta that names its base by hash.
type refDelta struct {
	base  ID
	entry int32
}

const (
	maxLoose     = 100 // objects of a thin pack that become files, as in Git; more stay a pack
	maxReceivers = 8   // goroutines that take in one pack
	otherObjects = 1_000_000

	packHeader  = 12 // bytes before the first object
	packTrailer = 20 // bytes after the last: the checksum
	minPacked   = 9  // bytes in the smallest object: one of header, and what zlib makes of nothing
)

var packMagic = []byte("PACK\x00\x00\x00\x02")

// openReceiver opens the pack as it came, having checked that it is long enough for the number of
// objects it claims, and may have as many: there is room made for all of them at once, and twelve bytes
// could claim 2^32.
func (q Quarantine) openReceiver(ctx context.Context, limits Limits, progress Progress) (*receiver, error) {
	file, err := os.Open(q.packPath())
	if err != nil {
		return nil, disk.Error("open the fetched pack", err)
	}
	r := &receiver{limits: limits, q: q, file: file, taken: progress.Count}
	if r.taken == nil {
		r.taken = func(int64) {}
	}
	r.ctx, r.cancel = context.WithTimeoutCause(ctx, limits.FetchTimeout, events.Errorf(events.Retryable, events.ClassQuota,
		"it takes longer than %v; raise the setting fetch-timeout if the repository is meant to be that large", limits.FetchTimeout))
	if err := r.readHead(); err != nil {
		r.cancel()
		_ = file.Close()
		return nil, err
	}
	if progress.Begin != nil {
		progress.Begin(int64(len(r.entries)))
	}
	return r, nil
}

// readHead reads the pack's head and makes room for its objects.
func (r *receiver) readHead() error {
	info, err := r.file.Stat()
	if err != nil {
		return disk.Error("open the fetched pack", err)
	}
	r.end = info.Size() - packTrailer
	if r.end < packHeader {
		return Corruptf("the fetched pack has only %d bytes", info.Size())
	}
	head := make([]byte, packHeader)
	if _, err := r.ReadAt(head, 0); err != nil {
		return Corruptf("read the fetched pack: %w", err)
	}
	if !bytes.HasPrefix(head, packMagic) {
		return Corruptf("what was fetched is no pack of version 2")
	}
	count := int64(binary.BigEndian.Uint32(head[len(packMagic):]))
	if count > (r.end-packHeader)/minPacked {
		return Corruptf("the fetched pack claims %d objects in %d bytes", count, info.Size())
	}
	if err := r.admitCount(count); err != nil {
		return r.blame(err)
	}
	r.entries = make([]packed, count)
	r.resolvers = make(chan *resolver, receivers())
	return nil
}

func receivers() int { return min(runtime.GOMAXPROCS(0), maxReceivers) }

func (r *receiver) close() {
	r.cancel()
	close(r.resolvers)
	for w := range r.resolvers {
		w.close()
	}
	r.whole.close()
	_ = r.file.Close()
}

// receive takes in the objects. Unless they have become files of their own, the pack and its index are
// in place afterwards.
func (r *receiver) receive() error {
	if err := r.scan(); err != nil {
		return r.blame(err)
	}
	if err := r.resolve(); err != nil {
		return err
	}
	if r.loose {
		return disk.Error("drop the fetched pack", os.Remove(r.file.Name()))
	}
	return r.keep()
}

// together runs work and what it starts, to their end. The first failure cancels the rest.
func (r *receiver) together(work func(g *errgroup.Group) error) error {
	g, ctx := errgroup.WithContext(r.ctx)
	g.SetLimit(receivers())
	outer := r.ctx
	r.ctx = ctx
	err := work(g)
	failed := g.Wait()
	r.ctx = outer
	return cmp.Or(failed, err)
}

// ReadAt reads the pack until the context is done.
func (r *receiver) ReadAt(b []byte, offset int64) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	n, err := r.file.ReadAt(b, offset)
	if err == io.EOF {
		return n, err
	}
	return n, disk.Error("read the fetched pack", err)
}

// admit checks an object's size, before it is inflated.
func (r *receiver) admit(kind plumbing.ObjectType, size int64) error {
	switch {
	case kind == plumbing.BlobObject && size > r.limits.MaxFileBytes:
		return Quotaf("the remote sent a file of %d bytes, which is more than %d; raise max-file-bytes if the repository is meant to have it",
			size, r.limits.MaxFileBytes)
	case kind != plumbing.BlobObject && size > maxMetadata:
		return Quotaf("the remote sent a %s of %d bytes, which is more than %d; take it out of the repository", kind, size, maxMetadata)
	}
	return nil
}

// admitCount checks the number of objects. There may be one for each entry of a tree, and a good many
// others.
func (r *receiver) admitCount(count int64) error {
	if limit := int64(r.limits.MaxTreeFiles) + otherObjects; count > limit {
		return Quotaf("the remote sent %d objects, which is more than %d; raise max-tree-files if the repository is meant to be that large",
			count, limit)
	}
	return nil
}

// count adds an object's size to that of all, before it is inflated.
func (r *receiver) count(size int64) error {
	if size > r.limits.MaxInflatedBytes-r.inflated {
		return Quotaf("the objects that the remote sent come to more than %d bytes; raise max-inflated-bytes if the repository is meant to be that large",
			r.limits.MaxInflatedBytes)
	}
	r.inflated += size
	return nil
}

// blame finds out whether a pack that exceeds a limit was damaged on its way: then what it says of
// itself means nothing.
func (r *receiver) blame(err error) error {
	if events.ClassOf(err) != events.ClassQuota {
		return err
	}
	sum := sha1.New()
	if _, err := io.CopyBuffer(onlyWriter{sum}, io.NewSectionReader(r, 0, r.end), make([]byte, chunkSize)); err != nil {
		return Corruptf("read the fetched pack: %w", err)
	}
	if failed := r.checkSum(sum); failed != nil {
		return failed
	}
	return err
}

// checkSum makes sure that the pack ends in its checksum.
func (r *receiver) checkSum(sum hash.Hash) error {
	trailer := make([]byte, packTrailer)
	if _, err := r.ReadAt(trailer, r.end); err != nil {
		return Corruptf("read the fetched pack: %w", err)
	}
	if !bytes.Equal(trailer, sum.Sum(nil)) {
		return Corruptf("read the fetched pack: its checksum is wrong")
	}
	return nil
}

// take hashes an object that is in memory, and makes it a file if it is to be one.
func (r *receiver) take(i int, kind plumbing.ObjectType, content []byte) error {
	h := plumbing.ComputeHash(kind, content)
	r.entries[i].hash = h
	r.taken(1)
	if !r.loose {
		return nil
	}
	return r.writeLoose(h, kind, int64(len(content)), bytes.NewReader(content))
}

// find returns the object, of the first n, that begins at an offset. Hashes may be written meanwhile.
func (r *receiver) find(offset int64, n int) (int, error) {
	i := sort.Search(n, func(i int) bool { return r.entries[i].offset >= offset })
	if i == n || r.entries[i].offset != offset {
		return 0, fmt.Errorf("no object begins at its base's offset, %d", offset)
	}
	return i, nil
}
