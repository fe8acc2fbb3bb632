package serve

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"

	"lockstep/internal/git/object"
)

// sharing makes each pack once for all clients that request it at the same time.
type sharing struct {
	dir   string
	limit int64           // see spool
	space *quota          // see spool
	ctx   context.Context // of all packs
	stop  context.CancelCauseFunc

	mu      sync.Mutex
	packs   map[[sha256.Size]byte]*sharedPack
	making  sync.WaitGroup
	closing bool
}

func newSharing(dir string, limit, total int64) *sharing {
	s := &sharing{
		dir: dir, limit: limit, space: newQuota(total, total/4), packs: map[[sha256.Size]byte]*sharedPack{},
	}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	return s
}

// sharedPack is a pack that is being made or sent.
type sharedPack struct {
	*spool
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
	p := &sharedPack{spool: newSpool(s.dir, s.limit), key: key, cancel: cancel, made: make(chan struct{})}
	p.rest, p.space, p.sender = rest, s.space, sender
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
	}
}
