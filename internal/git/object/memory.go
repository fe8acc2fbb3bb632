package object

import (
	"context"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
)

// Kept holds blobs that a first fetch has received, so that building the tree needs not inflate and hash them
// again. A nil Kept holds none. It is safe for concurrent use.
type Kept struct {
	mu    sync.Mutex
	size  int64
	blobs map[ID][]byte // nil once dropped
}

// maxKept bounds the memory of the blobs held by all fetches of the process, in bytes.
const maxKept = 64 << 20

// perKept is the approximate overhead of a blob, in addition to its content.
const perKept = 128

// keptSize is the memory of the blobs held by all fetches.
var keptSize atomic.Int64

// NewKept returns an empty Kept. The caller drops it.
func NewKept() *Kept { return &Kept{blobs: map[ID][]byte{}} }

// add keeps a copy of a blob while there is room.
func (k *Kept) add(h ID, content []byte) {
	if k == nil {
		return
	}
	size := int64(len(content)) + perKept
	if keptSize.Add(size) > maxKept {
		keptSize.Add(-size)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, known := k.blobs[h]; known || k.blobs == nil {
		keptSize.Add(-size)
		return
	}
	k.size += size
	k.blobs[h] = slices.Clone(content)
}

// get returns a blob that is kept.
func (k *Kept) get(h ID) (content []byte, ok bool) {
	if k == nil {
		return nil, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	content, ok = k.blobs[h]
	return content, ok
}

// Drop forgets all blobs.
func (k *Kept) Drop() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	keptSize.Add(-k.size)
	k.size, k.blobs = 0, nil
}

// spill is a temporary file for contents that are too large for memory, used as a stack.
type spill struct {
	dir  string
	file *os.File // nil until needed
	end  int64    // of the part in use
}

// Write appends to the file and creates it if necessary.
func (s *spill) Write(b []byte) (int, error) {
	if s.file == nil {
		file, err := os.CreateTemp(s.dir, tempObject+"spill-*")
		if err != nil {
			return 0, disk.Error("create a temporary file", err)
		}
		_ = os.Remove(file.Name()) // otherwise the quarantine's cleanup removes it
		s.file = file
	}
	n, err := s.file.WriteAt(b, s.end)
	s.end += int64(n)
	return n, disk.Error("write a temporary file", err)
}

// ReadAt implements [io.ReaderAt].
func (s *spill) ReadAt(b []byte, offset int64) (int, error) {
	if s.file == nil {
		return 0, io.EOF
	}
	n, err := s.file.ReadAt(b, offset)
	if err == io.EOF {
		return n, err
	}
	return n, disk.Error("read a temporary file", err)
}

// free releases the disk space of a range of the file, if the file system supports it.
func (s *spill) free(at, size int64) {
	if s.file != nil && size > 0 {
		_ = unix.Fallocate(int(s.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, size)
	}
}

func (s *spill) close() {
	if s.file != nil {
		_ = s.file.Close()
	}
}

// CancelWriter writes to Writer until Ctx is done.
type CancelWriter struct {
	Ctx context.Context
	io.Writer
}

// Write fails with the cause of Ctx once that is done.
func (c CancelWriter) Write(b []byte) (int, error) {
	if c.Ctx.Err() != nil {
		return 0, context.Cause(c.Ctx)
	}
	return c.Writer.Write(b)
}
