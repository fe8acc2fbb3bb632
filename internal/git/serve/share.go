package serve

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"sync/atomic"

	"lockstep/internal/git/object"
)

// sharing makes each pack once for all clients that request it at the same time.
type sharing struct {
	dir   string
	limit int64           // see spool
	free  atomic.Int64    // see spool
	share int64           // of one sender
	ctx   context.Context // of all packs
	stop  context.CancelCauseFunc

	mu      sync.Mutex
	packs   map[[sha256.Size]byte]*sharedPack
	senders map[string]*senderSpace // of packs that are being made or sent
	making  sync.WaitGroup
	closing bool
}

func newSharing(dir string, limit, total int64) *sharing {
	s := &sharing{
		dir: dir, limit: limit, share: total / 4, packs: map[[sha256.Size]byte]*sharedPack{},
		senders: map[string]*senderSpace{},
	}
	s.free.Store(total)
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	return s
}

// senderSpace is the space of the packs that a sender was the first to ask for.
type senderSpace struct {
	free  atomic.Int64 // see spool
	packs int
}

// space returns the space of a sender for one more pack. The caller holds mu.
func (s *sharing) space(sender string) *senderSpace {
	space := s.senders[sender]
	if space == nil {
		space = &senderSpace{}
		space.free.Store(s.share)
		s.senders[sender] = space
	}
	space.packs++
	return space
}

// sharedPack is a pack that is being made or sent.
type sharedPack struct {
	*spool
	sender string // the first to request it
	key    [sha256.Size]byte
	cancel context.CancelCauseFunc
	made   chan struct{} // closed when the writer has ended
}

var (
	errAbandoned = errors.New("all clients have left")
	errClosing   = errors.New("the server is shutting down")
)

// join returns a reader of the pack with a key, for a sender. If the pack is not in progress, join runs
// produce in the background and returns joined = false. produce must stop when its context is done, which
// happens once all readers have left. rest is as in [spool].
func (s *sharing) join(key [sha256.Size]byte, sender string, rest func(context.Context, func() error) error,
	produce func(ctx context.Context, write func([]byte) (int, error)) error) (r *packReader, joined bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, false, errClosing
	}
	if known := s.packs[key]; known != nil {
		if r := known.join(); r != nil {
			return &packReader{r, known, s}, true, nil
		}
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	p := &sharedPack{spool: newSpool(s.dir, s.limit), sender: sender, key: key, cancel: cancel, made: make(chan struct{})}
	p.rest, p.free = rest, []*atomic.Int64{&s.free, &s.space(sender).free}
	s.packs[key] = p
	reader := p.join()
	s.making.Go(func() {
		defer close(p.made)
		p.finish(recovered(func() error {
			return produce(ctx, func(b []byte) (int, error) { return p.write(ctx, b) })
		}))
	})
	return &packReader{reader, p, s}, false, nil
}

// recovered turns a panic of f into an error.
func recovered(f func() error) (err error) {
	defer object.RecoverCorrupt(&err)
	return f()
}

// close stops what is being made and waits for it.
func (s *sharing) close() {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.stop(errClosing)
	s.making.Wait()
}

// packReader reads a shared pack.
type packReader struct {
	*spoolReader
	pack    *sharedPack
	sharing *sharing
}

// close leaves the pack. The last reader frees it.
func (r *packReader) close() {
	s, p := r.sharing, r.pack
	s.mu.Lock()
	left := p.leave(r.spoolReader)
	if left == 0 && s.packs[p.key] == p {
		delete(s.packs, p.key)
	}
	s.mu.Unlock()
	if left == 0 {
		p.cancel(errAbandoned)
		<-p.made
		p.spool.close()
		s.mu.Lock()
		defer s.mu.Unlock()
		if space := s.senders[p.sender]; space.packs == 1 {
			delete(s.senders, p.sender)
		} else {
			space.packs--
		}
	}
}
