// Package spool keeps lines in files on the local disk while their destination is unreachable.
//
//	s, err := spool.Open("spool", 1<<30)
//	err = s.Append(ctx, line)     // on disk when it returns nil
//	more, err := s.Drain(send)    // gives the lines of the oldest file to send, then deletes it
//
// Processes may share a directory. Each writes to a file of its own, which it locks with flock, and first drains the files that nobody
// locks, because their process is dead. So the directory must be on a local file system.
//
//	killed, or power loss, after Append     the line is kept
//	killed before Append returned           the line may or may not be kept; one that was cut off is ignored
//	killed while a file is drained          its lines are given to send again, which must detect duplicates
//	disk or directory full                  Append fails; draining needs space only for lines that are kept
//	a file cannot be read                   it is renamed to *.unreadable, and Drain fails once
//	disk hangs                              Append returns when its context is done; the line may still be kept
package spool

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
)

// ErrFull means that the directory has as many bytes as it may have.
var ErrFull = errors.New("spool: full")

const suffix = ".jsonl"

// Spool is the files of one process. It is safe for concurrent use, except that Drain and Close must not be called concurrently.
type Spool struct {
	dir      string
	maxBytes int64
	appends  chan line
	appended chan struct{}
	closed   chan struct{}
	writer   sync.WaitGroup

	waiting atomic.Bool
	bytes   atomic.Int64 // size of all files in the directory, measured when one is created or deleted, and appends since

	mu   sync.Mutex // held while own is written; guards own and size
	own  *os.File   // nil until the next Append
	size int64      // of own

	oldest *os.File // is drained; nil between files
	read   int64    // bytes of it that were drained
	kept   []byte   // its lines that are to be kept

	drainsOwn bool // oldest was the file of this process
}

type line struct {
	text []byte // with its newline
	done chan error
}

// Open opens a spool in dir, which it creates if necessary. maxBytes limits the size of all files in it. The caller must close the spool.
func Open(dir string, maxBytes int64) (*Spool, error) {
	s := &Spool{dir: dir, maxBytes: maxBytes, appends: make(chan line), appended: make(chan struct{}, 1), closed: make(chan struct{})}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	probe, err := s.create()
	if err == nil {
		err = s.remove(probe)
	}
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	s.writer.Go(s.write)
	return s, nil
}

// Append adds a line and returns nil when it is on disk. It returns [ErrFull] beyond the limit. If ctx is done first, the line may or may
// not be kept.
func (s *Spool) Append(ctx context.Context, text []byte) (err error) {
	l := line{append(text, '\n'), make(chan error, 1)}
	select {
	case s.appends <- l:
	case <-s.closed:
		return errors.New("spool: closed")
	case <-ctx.Done():
		return fmt.Errorf("spool: the disk does not respond: %w", context.Cause(ctx))
	}
	select {
	case err = <-l.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("spool: the disk does not respond: %w", context.Cause(ctx))
	}
}

// write stores lines until Close, those that wait meanwhile together.
func (s *Spool) write() {
	for {
		select {
		case <-s.closed:
			return
		case l := <-s.appends:
			batch, text := []line{}, []byte{}
			for more := true; more; {
				if s.isFull(len(text) + len(l.text)) {
					l.done <- ErrFull
				} else {
					batch, text = append(batch, l), append(text, l.text...)
				}
				select {
				case l = <-s.appends:
				default:
					more = false
				}
			}
			err := s.store(text)
			for _, l := range batch {
				l.done <- err
			}
			select {
			case s.appended <- struct{}{}:
			default:
			}
		}
	}
}

// isFull reports whether the directory has no room for so many bytes. Other processes may have deleted files since they were measured.
func (s *Spool) isFull(bytes int) bool {
	if s.bytes.Load()+int64(bytes) > s.maxBytes {
		s.measure()
	}
	return s.bytes.Load()+int64(bytes) > s.maxBytes
}

// store appends lines to the own file and syncs it.
func (s *Spool) store(text []byte) (err error) {
	if len(text) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own == nil {
		if s.own, err = s.create(); err != nil {
			return fmt.Errorf("spool: %w", err)
		}
		s.size = 0
	}
	_, err = s.own.WriteAt(text, s.size)
	if err == nil {
		err = s.own.Sync()
	}
	if err != nil {
		_ = s.own.Truncate(s.size) // if that fails too, the next call overwrites the rest
		return fmt.Errorf("spool: %w", err)
	}
	s.size += int64(len(text))
	s.bytes.Add(int64(len(text)))
	s.waiting.Store(true)
	return nil
}

// Drain gives each line of a file to send: the oldest of dead processes, or else that of this one. The lines that send returns are added to
// the file of this process, regardless of the limit, before the drained one is deleted. If send fails, the next Drain continues with that
// line. more reports whether there may be lines that were not given to send yet.
func (s *Spool) Drain(send func(text []byte) (again []byte, err error)) (more bool, err error) {
	if s.oldest == nil {
		s.read, s.kept = 0, nil
		var own bool
		if s.oldest, own, err = s.next(); s.oldest == nil || err != nil {
			s.measure()
			return false, err
		}
		s.drainsOwn = own
	}
	in := bufio.NewReader(io.NewSectionReader(s.oldest, s.read, math.MaxInt64-s.read))
	for {
		text, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // text is empty, or a line that was cut off
			break
		}
		if err != nil {
			return true, s.setAside(err)
		}
		again, err := send(text[:len(text)-1])
		if err != nil {
			return true, err
		}
		if again != nil {
			s.kept = append(append(s.kept, again...), '\n')
		}
		s.read += int64(len(text))
	}
	if err := s.store(s.kept); err != nil {
		return true, err
	}
	more = !s.drainsOwn || len(s.kept) == 0
	if err := s.remove(s.oldest); err != nil {
		return true, err
	}
	s.oldest = nil
	return more, nil
}

// setAside keeps a file that cannot be read from blocking the others.
func (s *Spool) setAside(cause error) error {
	path := s.oldest.Name()
	err := errors.Join(fmt.Errorf("spool: %s is left aside: %w", path, cause), os.Rename(path, path+".unreadable"), s.store(s.kept), s.oldest.Close())
	s.oldest = nil
	return err
}

// next returns the file to drain, or nil, and whether it is that of this process.
func (s *Spool) next() (file *os.File, own bool, err error) {
	paths, err := disk.Glob(s.dir, "*"+suffix)
	for _, path := range paths {
		file, failed := open(path, 0)
		if file != nil {
			return file, false, nil
		}
		err = errors.Join(err, failed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	file, s.own = s.own, nil
	s.waiting.Store(file != nil)
	if file != nil { // files that cannot be opened do not block it
		err = nil
	}
	return file, true, err
}

// Waiting reports whether lines of this process may not be drained yet.
func (s *Spool) Waiting() bool { return s.waiting.Load() }

// Bytes returns the size of all files in the directory.
func (s *Spool) Bytes() int64 { return s.bytes.Load() }

// Appended returns a channel that receives a value after calls of Append.
func (s *Spool) Appended() <-chan struct{} { return s.appended }

// Close closes the files, so that others drain them. Calls of Append in progress finish first.
func (s *Spool) Close() (err error) {
	close(s.closed)
	s.writer.Wait()
	for _, file := range []*os.File{s.own, s.oldest} {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
	}
	return err
}

// create returns the next file of this process.
func (s *Spool) create() (*os.File, error) {
	for {
		name := time.Now().UTC().Format("20060102T150405.000000000") + "-" + rand.Text()[:8] + suffix
		file, err := open(filepath.Join(s.dir, name), os.O_CREATE|os.O_EXCL)
		if err != nil {
			return nil, err
		}
		if file == nil { // before it was locked, another process took it for one of a dead process
			continue
		}
		if err := disk.SyncDir(s.dir); err != nil {
			return nil, errors.Join(err, s.remove(file))
		}
		s.measure()
		return file, nil
	}
}

func (s *Spool) remove(file *os.File) error {
	if err := os.Remove(file.Name()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("spool: %w", err)
	}
	_ = file.Close()
	s.measure()
	return nil
}

func (s *Spool) measure() {
	paths, _ := disk.Glob(s.dir, "*"+suffix) // a folder that cannot be read fails elsewhere
	bytes := int64(0)
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil { // otherwise another process has deleted it
			bytes += info.Size()
		}
	}
	s.bytes.Store(bytes)
}

// open opens and locks a file. It returns nil if another process uses or has deleted it.
func open(path string, flags int) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|flags, 0o600)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) && flags == 0 {
			err = nil
		}
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = unix.Fstat(int(file.Fd()), &st)
	}
	if err == nil && st.Nlink > 0 {
		return file, nil
	}
	_ = file.Close()
	if err == nil || errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, &os.PathError{Op: "lock", Path: path, Err: err}
}
