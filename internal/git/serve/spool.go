package serve

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// spoolHead is the number of bytes of a spool that are kept in memory: most packs of a push need no file.
const spoolHead = 128 << 10

// spoolReserve is the size in bytes that a spool needs beyond its head. If no file can have it, it is in memory.
const spoolReserve = 256 << 10

// minSpool is the size in bytes that the file of a spool may have even if all space is used.
const minSpool = 1 << 20

// spool passes a stream from one writer to any number of readers, each at its own pace. What is beyond its
// head is in a temporary file, used as a ring of limit bytes: a writer that is further ahead of the slowest
// reader waits. Without a usable folder for the file, or once its file system is full, the ring is smaller.
type spool struct {
	dir    string
	rest   func(ctx context.Context, wait func() error) error // runs a wait of the writer for readers; optional
	space  *quota                                             // of the files of all spools, beyond minSpool; optional
	sender string                                             // the first to request the pack

	mu      sync.Mutex
	limit   int64         // becomes the size of the file once no space is left, or its file system is full
	taken   int64         // of space
	changed chan struct{} // closed at the next change
	head    []byte
	file    *os.File // nil until needed; already unlinked
	size    int64    // bytes written
	claimed int64    // bytes written or about to be
	readers map[*spoolReader]bool
	done    bool
	err     error // of the writer, once done
}

func newSpool(dir string, limit int64) *spool {
	return &spool{dir: dir, limit: limit, changed: make(chan struct{}), readers: map[*spoolReader]bool{}}
}

// notify wakes all who wait. The caller holds mu.
func (s *spool) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// spoolReader reads a spool from its start.
type spoolReader struct {
	spool *spool
	at    int64
}

// join returns a new reader; nil if the start is no longer there or the writer has failed.
func (s *spool) join() *spoolReader {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claimed > spoolHead+s.limit || s.err != nil {
		return nil
	}
	r := &spoolReader{spool: s}
	s.readers[r] = true
	return r
}

// leave removes a reader and returns how many are left.
func (s *spool) leave(r *spoolReader) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.readers, r)
	s.notify()
	return len(s.readers)
}

// finish ends the stream with the writer's error, if any.
func (s *spool) finish(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done, s.err = true, err
	s.notify()
}

// close frees the file. There is neither a writer nor a reader any more.
func (s *spool) close() {
	if s.file != nil {
		_ = s.file.Close()
	}
	if s.space != nil {
		s.space.give(s.sender, s.taken)
	}
}

// write appends to the stream. It waits for readers that are more than limit behind until ctx is done.
func (s *spool) write(ctx context.Context, b []byte) (n int, err error) {
	for n < len(b) {
		part := b[n:min(len(b), n+int(min(s.limit, minSpool)))]
		if err := s.makeRoom(ctx, int64(len(part))); err != nil {
			return n, err
		}
		written, err := s.put(part)
		if n += written; err != nil {
			return n, err
		}
		s.mu.Lock()
		s.size += int64(written)
		s.notify()
		s.mu.Unlock()
	}
	return n, nil
}

// makeRoom claims room for the next need bytes, and waits until there is some.
func (s *spool) makeRoom(ctx context.Context, need int64) error {
	hasRoom, _ := s.claim(need)
	switch {
	case hasRoom:
		return nil
	case s.rest == nil:
		return s.waitForRoom(ctx, need)
	}
	return s.rest(ctx, func() error { return s.waitForRoom(ctx, need) })
}

// claim claims room if there is some. changed is closed when there may be more.
func (s *spool) claim(need int64) (ok bool, changed chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.size
	for r := range s.readers {
		first = min(first, r.at)
	}
	s.take(s.size + need - spoolHead)
	if ok = s.size-max(first, min(s.size, spoolHead))+need <= s.limit; ok {
		s.claimed = s.size + need
	}
	return ok, s.changed
}

// take takes space for a file of at most size bytes. If there is none, the file stays as it is. The caller holds mu.
func (s *spool) take(size int64) {
	more := min(size, s.limit) - minSpool - s.taken
	switch {
	case more <= 0 || s.space == nil:
	case s.space.take(s.sender, more):
		s.taken += more
	default:
		s.limit = minSpool + s.taken
	}
}

func (s *spool) waitForRoom(ctx context.Context, need int64) error {
	for {
		hasRoom, changed := s.claim(need)
		if hasRoom {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// put stores the next bytes, as many as are contiguous, or none if it has made the ring smaller. Only the
// writer calls it.
func (s *spool) put(b []byte) (int, error) {
	if room := spoolHead - len(s.head); room > 0 {
		b = b[:min(len(b), room)]
		s.mu.Lock()
		s.head = append(s.head, b...)
		s.mu.Unlock()
		return len(b), nil
	}
	if s.file == nil {
		file, err := spoolFile(s.dir, min(s.limit, spoolReserve))
		if err != nil {
			if file, err = spoolMemory(); err != nil {
				return 0, err
			}
			s.shrink(min(s.limit, spoolReserve))
		}
		s.file = file
		return 0, nil
	}
	at := (s.size - spoolHead) % s.limit
	n, err := s.file.WriteAt(b[:min(int64(len(b)), s.limit-at)], at)
	isFirstLap := s.size-spoolHead < s.limit
	if (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) && isFirstLap && at+int64(n) >= spoolReserve {
		s.shrink(at + int64(n))
		return n, nil
	}
	return n, err
}

// shrink makes the ring smaller, on its first lap: nothing is beyond the new limit.
func (s *spool) shrink(limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = limit
}

// spoolFile creates an unlinked file that has space for reserve bytes.
func spoolFile(dir string, reserve int64) (*os.File, error) {
	file, err := os.CreateTemp(dir, "lockstep-pack-*")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(file.Name())
	if _, err := file.WriteAt(make([]byte, reserve), 0); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// spoolMemory creates a file in memory.
func spoolMemory() (*os.File, error) {
	fd, err := unix.MemfdCreate("lockstep-pack", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "lockstep-pack"), nil
}

// errIdle means that nothing was read for a while.
var errIdle = errors.New("nothing to read yet")

// read reads what is there, at least one byte. It returns io.EOF at the end, errIdle after a time without data, and the
// writer's error.
func (r *spoolReader) read(ctx context.Context, b []byte, idle time.Duration) (int, error) {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	s := r.spool
	for {
		s.mu.Lock()
		changed, left, done, err := s.changed, s.size-r.at, s.done, s.err
		n := 0
		if left > 0 && r.at < int64(len(s.head)) {
			n = copy(b, s.head[r.at:])
			r.at += int64(n)
		}
		s.mu.Unlock()
		switch {
		case n > 0:
			return n, nil
		case left > 0:
			return r.readFile(b[:min(int64(len(b)), left)])
		case err != nil:
			return 0, err
		case done:
			return 0, io.EOF
		}
		select {
		case <-changed:
		case <-timer.C:
			return 0, errIdle
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

func (r *spoolReader) readFile(b []byte) (int, error) {
	s := r.spool
	s.mu.Lock()
	limit := s.limit
	s.mu.Unlock()
	at := (r.at - spoolHead) % limit
	n, err := s.file.ReadAt(b[:min(int64(len(b)), limit-at)], at)
	if n == 0 {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.at += int64(n)
	if s.size-r.at > s.limit/2 || !s.done {
		s.notify()
	}
	return n, nil
}
