package object

import (
	"context"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
)

// spill is a temporary file for the contents that have no place in memory, used as a stack.
type spill struct {
	dir  string
	file *os.File // nil until needed
	end  int64    // of what is in use
}

// Write adds to the end.
func (s *spill) Write(b []byte) (int, error) {
	if s.file == nil {
		file, err := os.CreateTemp(s.dir, tempObject+"spill-*")
		if err != nil {
			return 0, disk.Error("make a temporary file", err)
		}
		_ = os.Remove(file.Name()) // what cannot be removed now is swept later
		s.file = file
	}
	n, err := s.file.WriteAt(b, s.end)
	s.end += int64(n)
	return n, disk.Error("write a temporary file", err)
}

// ReadAt reads what has been written.
func (s *spill) ReadAt(b []byte, offset int64) (int, error) {
	if s.file == nil {
		return 0, io.EOF
	}
	return s.file.ReadAt(b, offset)
}

// punch gives the room of a part back that is not needed any more. Not every file system can.
func (s *spill) punch(at, size int64) {
	if s.file != nil && size > 0 {
		_ = unix.Fallocate(int(s.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, size)
	}
}

func (s *spill) close() {
	if s.file != nil {
		_ = s.file.Close()
	}
}

// CancelWriter writes to a Writer until a context is done.
type CancelWriter struct {
	Ctx context.Context // of the phase
	io.Writer
}

// Write fails with the context's cause once that is done.
func (u CancelWriter) Write(b []byte) (int, error) {
	if u.Ctx.Err() != nil {
		return 0, context.Cause(u.Ctx)
	}
	return u.Writer.Write(b)
}
