package object

import (
	"bytes"
	"cmp"
	"context"
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

	"lockstep/internal/disk"
	"lockstep/internal/git"
)

// receiver receives a fetched pack. It scans the pack once, hashing the objects that are not deltas, and then
// resolves each tree of deltas from its root. Its memory depends on the number of objects, not on their size:
// contents above LargeObject pass through temporary files.
type receiver struct {
	ctx      context.Context // of the current phase
	cancel   context.CancelFunc
	limits   Limits
	q        Quarantine
	format   Format        // of q
	file     *os.File      // the fetched pack
	end      int64         // offset of the pack's checksum, behind the last object
	loose    bool          // write every object to a loose file
	received func(n int64) // counts received objects

	entries   []packed
	refs      []refDelta // sorted by base after the scan
	inflated  int64      // bytes in all objects so far
	resolvers chan *resolver
	buffers   sync.Pool    // of *bytes.Buffer, for objects being hashed
	deflaters sync.Pool    // of *zlib.Writer
	files     atomic.Int64 // number of loose files created

	mu   sync.Mutex // guards full, and claimed in refs
	full fullObjects

	storeMu sync.Mutex
	store   *Store // has the bases of a thin pack; nil for a complete pack
}

// packed is an object in a pack. A pack may have millions.
type packed struct {
	offset  int64
	crc     uint32 // of its bytes in the pack
	child   int32  // the last OFS delta on this object; 0 for none, since the first object cannot be a delta
	sibling int32  // the previous OFS delta on the same base; 0 for none
	kind    plumbing.ObjectType
	delta   bool // stored as a delta; kind is the resolved type once the hash is known
	hash    ID   // zero until known
}

// refDelta is a delta that names its base by hash.
type refDelta struct {
	base    ID
	entry   int32
	claimed bool // set on the first delta of a base once a resolver works on that base
}

const (
	maxLoose     = 100 // a thin pack with more objects stays a pack, as in Git
	maxReceivers = 8   // goroutines per pack
	otherObjects = 1_000_000

	packHeader = 12 // bytes before the first object
	minPacked  = 9  // bytes of the smallest object: its header and empty zlib data
)

var packMagic = []byte("PACK\x00\x00\x00\x02")

// openReceiver opens the fetched pack. It checks the declared number of objects against the limits and the
// length of the pack before it allocates memory for them: twelve bytes could declare 2^32 objects.
func (q Quarantine) openReceiver(ctx context.Context, limits Limits, progress Progress) (*receiver, error) {
	file, err := os.Open(q.packPath())
	if err != nil {
		return nil, disk.Error("open the fetched pack", err)
	}
	r := &receiver{
		limits: limits, q: q, format: q.Format, file: file, received: progress.Count,
		full: fullObjects{spill: spill{dir: q.Dir}},
	}
	if r.received == nil {
		r.received = func(int64) {}
	}
	r.ctx, r.cancel = context.WithTimeoutCause(ctx, limits.FetchTimeout, git.Errorf(git.Retryable, git.ClassQuota,
		"receiving the pack took longer than %v; raise fetch-timeout in the setting limits if the repository is "+
			"meant to be that large", limits.FetchTimeout))
	if err := r.readHeader(); err != nil {
		r.cancel()
		_ = file.Close()
		return nil, err
	}
	if progress.Begin != nil {
		progress.Begin(int64(len(r.entries)))
	}
	return r, nil
}

// readHeader reads the pack's header and allocates the entries.
func (r *receiver) readHeader() error {
	info, err := r.file.Stat()
	if err != nil {
		return disk.Error("open the fetched pack", err)
	}
	r.end = info.Size() - int64(r.format.Size())
	if r.end < packHeader {
		return Corruptf("the fetched pack has only %d bytes", info.Size())
	}
	header := make([]byte, packHeader)
	if _, err := r.ReadAt(header, 0); err != nil {
		return Corruptf("read the fetched pack: %w", err)
	}
	if !bytes.HasPrefix(header, packMagic) {
		return Corruptf("the fetched file is not a pack of version 2")
	}
	count := int64(binary.BigEndian.Uint32(header[len(packMagic):]))
	if count > (r.end-packHeader)/minPacked {
		return Corruptf("the fetched pack declares %d objects in %d bytes", count, info.Size())
	}
	if limit := int64(r.limits.MaxTreeFiles) + otherObjects; count > limit { // one for each file of a tree, and others
		return r.confirmQuota(Quotaf("the remote sent %d objects, which is more than %d; raise max-tree-files in the "+
			"setting limits if the repository is meant to be that large", count, limit))
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
	r.full.close()
	_ = r.file.Close()
}

// receive reads and checks all objects, and then installs the pack unless the objects are loose files.
func (r *receiver) receive() error {
	if err := r.scan(); err != nil {
		return r.confirmQuota(err)
	}
	if err := r.resolve(); err != nil {
		return err
	}
	if r.loose {
		return disk.Error("remove the fetched pack", os.Remove(r.file.Name()))
	}
	return r.install()
}

// runPhase runs work and waits for the goroutines that it starts. The first failure cancels the others.
func (r *receiver) runPhase(work func(g *errgroup.Group) error) error {
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

// checkSize checks an object's declared size before it is inflated.
func (r *receiver) checkSize(kind plumbing.ObjectType, size int64) error {
	switch {
	case kind == plumbing.BlobObject && size > r.limits.MaxFileBytes:
		return Quotaf("the remote sent a file of %d bytes, which is more than %d; raise max-file-bytes in the "+
			"setting limits if the repository is meant to have it",
			size, r.limits.MaxFileBytes)
	case kind != plumbing.BlobObject && size > maxMetadata:
		return Quotaf("the remote sent a %s of %d bytes, which is more than %d; remove it from the repository", kind,
			size, maxMetadata)
	}
	return nil
}

// addInflated adds an object's size to the total before it is inflated.
func (r *receiver) addInflated(size int64) error {
	if size > r.limits.MaxInflatedBytes-r.inflated {
		return Quotaf("the objects that the remote sent inflate to more than %d bytes; raise max-inflated-bytes in "+
			"the setting limits if the repository is meant to be that large",
			r.limits.MaxInflatedBytes)
	}
	r.inflated += size
	return nil
}

// confirmQuota verifies the checksum of a pack that exceeds a limit. If it is wrong, the pack was damaged in
// transit and its declared sizes are meaningless.
func (r *receiver) confirmQuota(err error) error {
	if git.ClassOf(err) != git.ClassQuota {
		return err
	}
	sum := r.format.NewSum()
	if _, err := io.CopyBuffer(onlyWriter{sum}, io.NewSectionReader(r, 0, r.end), make([]byte, chunkSize)); err != nil {
		return Corruptf("read the fetched pack: %w", err)
	}
	if failed := r.checkSum(sum); failed != nil {
		return failed
	}
	return err
}

// checkSum verifies the checksum at the end of the pack.
func (r *receiver) checkSum(sum hash.Hash) error {
	trailer := make([]byte, r.format.Size())
	if _, err := r.ReadAt(trailer, r.end); err != nil {
		return Corruptf("read the fetched pack: %w", err)
	}
	if !bytes.Equal(trailer, sum.Sum(nil)) {
		return Corruptf("read the fetched pack: its checksum is wrong")
	}
	return nil
}

// addObject hashes an object in memory and writes its loose file if needed.
func (r *receiver) addObject(i int, kind plumbing.ObjectType, content []byte) error {
	h := r.format.Hash(kind, content)
	r.entries[i].hash = h
	r.received(1)
	if !r.loose {
		if kind == plumbing.BlobObject {
			r.q.Kept.add(h, content)
		}
		return nil
	}
	return r.writeLoose(h, kind, int64(len(content)), bytes.NewReader(content))
}

// find returns the index of the object at an offset among the first n. Other goroutines may set hashes meanwhile.
func (r *receiver) find(offset int64, n int) (int, error) {
	i := sort.Search(n, func(i int) bool { return r.entries[i].offset >= offset })
	if i == n || r.entries[i].offset != offset {
		return 0, fmt.Errorf("no object begins at offset %d, where the base should be", offset)
	}
	return i, nil
}
