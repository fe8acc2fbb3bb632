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

const (
	suffix   = ".jsonl"
	maxBatch = 16 << 20 // bytes that wait for the disk
)

// Spool is the files of one process. It is safe for concurrent use, except that Drain and Close must not be called concurrently.
type Spool struct {
	dir      string
	maxBytes int64
	appended chan struct{}
	waiting  atomic.Bool
	writers  sync.WaitGroup

	queue  sync.Mutex // guards next and closed
	next   *batch     // waits for the disk; nil if there is none
	closed bool

	mu   sync.Mutex // held while own is written; guards own and size
	own  *os.File   // nil until the next Append
	size int64      // of own

	oldest *os.File // is drained; nil between files
	read   int64    // bytes of it that were drained
	kept   []byte   // its lines that are to be kept
}

// batch is lines that are written together.
type batch struct {
	text []byte
	done chan struct{}
	err  error
}

// Open opens a spool in dir, which it creates if necessary. maxBytes limits the size of all files in it. The caller must close the spool.
func Open(dir string, maxBytes int64) (*Spool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	s := &Spool{dir: dir, maxBytes: maxBytes, appended: make(chan struct{}, 1)}
	probe, err := s.create()
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	return s, remove(probe)
}

// Append adds a line and returns nil when it is on disk. It returns [ErrFull] beyond the limit. If ctx is done first, the line may or may
// not be kept.
func (s *Spool) Append(ctx context.Context, text []byte) error {
	b, err := s.join(text)
	if err != nil {
		return err
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return fmt.Errorf("spool: the disk does not respond: %w", context.Cause(ctx))
	}
}

// join adds a line to the next batch, which it starts if there is none.
func (s *Spool) join(text []byte) (*batch, error) {
	s.queue.Lock()
	defer s.queue.Unlock()
	switch {
	case s.closed:
		return nil, errors.New("spool: closed")
	case s.next == nil:
		s.next = &batch{done: make(chan struct{})}
		s.writers.Go(s.write)
	case len(s.next.text)+len(text) > maxBatch:
		return nil, errors.New("spool: the disk does not respond: too many lines wait for it")
	}
	s.next.text = append(append(s.next.text, text...), '\n')
	return s.next, nil
}

// write writes the next batch once the one before is written.
func (s *Spool) write() {
	s.mu.Lock()
	s.queue.Lock()
	b := s.next
	s.next = nil
	s.queue.Unlock()
	if b.err = ErrFull; s.Bytes()+int64(len(b.text)) <= s.maxBytes {
		b.err = s.store(b.text)
	}
	s.mu.Unlock()
	close(b.done)
	select {
	case s.appended <- struct{}{}:
	default:
	}
}

// store appends lines to the own file and syncs it. The caller holds mu.
func (s *Spool) store(text []byte) (err error) {
	if len(text) == 0 {
		return nil
	}
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
	s.waiting.Store(true)
	return nil
}

// Drain gives each line of a file to send: the oldest of dead processes, or else that of this one. The lines that send returns are added to
// the file of this process, regardless of the limit, before the drained one is deleted. If send fails, the next Drain continues with that
// line. more reports whether to drain the next file at once: there may be one, and it does not have only lines that were kept.
func (s *Spool) Drain(send func(text []byte) (again []byte, err error)) (more bool, err error) {
	if s.oldest == nil {
		if err := s.open(); s.oldest == nil {
			return false, err
		}
	}
	var unreadable error
	in := bufio.NewReader(io.NewSectionReader(s.oldest, s.read, math.MaxInt64-s.read))
	for {
		text, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // text is empty, or a line that was cut off
			break
		}
		if err != nil {
			unreadable = fmt.Errorf("spool: %s is left aside: %w", s.oldest.Name(), err)
			break
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
	s.mu.Lock()
	err = s.store(s.kept)
	s.mu.Unlock()
	if err != nil {
		return true, err
	}
	more, s.kept = len(s.kept) == 0, nil
	if unreadable != nil { // does not block the others
		if err := os.Rename(s.oldest.Name(), s.oldest.Name()+".unreadable"); err != nil {
			return true, err
		}
	}
	if err := remove(s.oldest); err != nil {
		return true, err
	}
	s.oldest = nil
	return more, unreadable
}

// open opens the next file to drain, if there is one. An error is that of files that cannot be opened.
func (s *Spool) open() error {
	s.read = 0
	paths, err := disk.Glob(s.dir, "*"+suffix)
	for _, path := range paths {
		file, failed := open(path, 0)
		if file != nil {
			s.oldest = file
			return nil
		}
		err = errors.Join(err, failed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.oldest, s.own = s.own, nil
	s.waiting.Store(s.oldest != nil)
	return err
}

// Waiting reports whether lines of this process may not be drained yet.
func (s *Spool) Waiting() bool { return s.waiting.Load() }

// Bytes returns the size of all files in the directory.
func (s *Spool) Bytes() (bytes int64) {
	paths, _ := disk.Glob(s.dir, "*"+suffix) // a folder that cannot be read fails elsewhere
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil { // otherwise another process has deleted it
			bytes += info.Size()
		}
	}
	return bytes
}

// Appended returns a channel that receives a value after calls of Append.
func (s *Spool) Appended() <-chan struct{} { return s.appended }

// Close closes the files, so that others drain them. Calls of Append in progress finish first.
func (s *Spool) Close() (err error) {
	s.queue.Lock()
	s.closed = true
	s.queue.Unlock()
	s.writers.Wait()
	for _, file := range []*os.File{s.own, s.oldest} {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
	}
	return err
}

// create returns the next file of this process.
func (s *Spool) create() (file *os.File, err error) {
	for file == nil { // until no other process has locked it first, as one of a dead process
		name := time.Now().UTC().Format("20060102T150405.000000000") + "-" + rand.Text()[:8] + suffix
		if file, err = open(filepath.Join(s.dir, name), os.O_CREATE|os.O_EXCL); err != nil {
			return nil, err
		}
	}
	if err := disk.SyncDir(s.dir); err != nil {
		return nil, errors.Join(err, remove(file))
	}
	return file, nil
}

// remove deletes and closes a file, which another process may have deleted.
func remove(file *os.File) error {
	if err := os.Remove(file.Name()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("spool: %w", err)
	}
	return file.Close()
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
