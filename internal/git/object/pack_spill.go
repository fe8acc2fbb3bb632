package object

import (
	"context"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
)

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
