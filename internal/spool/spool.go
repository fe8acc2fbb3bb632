// Package spool keeps deliveries in files on the local disk while their destination is unreachable.
//
//	s, err := spool.Open("spool", 1<<30)
//	err = s.Append(ctx, text)     // on disk when it returns nil
//	more, err := s.Drain(send)    // gives the text of each file to send, the oldest first, then deletes it
//
// Each delivery is a file, which is complete once it has its name. Any process with the directory sends it, so those of a process that
// never returns are not lost; two may send the same one.
//
//	killed, or power loss, after Append     the delivery is kept
//	killed before Append returned           it may or may not be kept
//	killed while it is sent                 it is sent again; the receiver must detect duplicates
//	disk or directory full                  Append fails; draining needs no space
//	a file cannot be read                   it is renamed to *.unreadable, and Drain fails once
//	disk hangs                              Append returns when its context is done; the delivery may still be kept
package spool

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"lockstep/internal/disk"
)

// ErrFull means that the directory has as many bytes as it may have.
var ErrFull = errors.New("spool: full")

const (
	suffix = ".json"
	atOnce = 64 // files that are written at a time: the file system syncs them together
)

// Spool is a directory of deliveries. It is safe for concurrent use, except for Drain.
type Spool struct {
	dir      string
	maxBytes int64
	slots    chan struct{}
	appended chan struct{}
	waiting  atomic.Bool
	bytes    atomic.Int64 // size of all files when they were listed, and changes by this process since

	left []string // paths that were listed, and not given to send yet
}

// Open opens a spool in dir, which it creates if necessary. maxBytes limits the size of all files in it.
func Open(dir string, maxBytes int64) (*Spool, error) {
	s := &Spool{dir: dir, maxBytes: maxBytes, slots: make(chan struct{}, atOnce), appended: make(chan struct{}, 1)}
	probe := filepath.Join(dir, rand.Text()+disk.TempInfix)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = disk.WriteNew(probe, nil)
	}
	if err == nil {
		err = os.Remove(probe)
	}
	if err == nil {
		err = s.list()
	}
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	temps, _ := disk.Glob(dir, "*"+disk.TempInfix+"*")
	for _, path := range temps { // of writers that crashed
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) > time.Hour {
			_ = os.Remove(path)
		}
	}
	return s, nil
}

// Append adds a delivery and returns nil when it is on disk. It returns [ErrFull] beyond the limit. If ctx is done first, the delivery may
// or may not be kept. The caller must not change text afterwards.
func (s *Spool) Append(ctx context.Context, text []byte) error {
	if s.bytes.Load()+int64(len(text)) > s.maxBytes {
		return ErrFull
	}
	done := make(chan error, 1)
	select {
	case s.slots <- struct{}{}:
		go func() {
			done <- s.write(text)
			<-s.slots
		}()
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("spool: the disk does not respond: %w", context.Cause(ctx))
	}
}

func (s *Spool) write(text []byte) error {
	name := time.Now().UTC().Format("20060102T150405.000000000") + "-" + rand.Text()[:8] + suffix
	if err := disk.ReplacePrivate(filepath.Join(s.dir, name), text); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	s.bytes.Add(int64(len(text)))
	s.waiting.Store(true)
	select {
	case s.appended <- struct{}{}:
	default:
	}
	return nil
}

// Drain gives each delivery to send and deletes it unless keep is set: then it is given again by a later pass. If send fails, the next
// Drain continues with that delivery. more reports whether to drain again at once: deliveries were deleted, and there may be others.
func (s *Spool) Drain(send func(text []byte) (keep bool, err error)) (more bool, err error) {
	if len(s.left) == 0 {
		if err := s.list(); err != nil {
			return false, err
		}
	}
	for ; len(s.left) > 0; s.left = s.left[1:] {
		path := s.left[0]
		text, failed := os.ReadFile(path)
		if errors.Is(failed, os.ErrNotExist) { // another process has sent it
			continue
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("spool: left aside: %w", failed), os.Rename(path, path+".unreadable"))
			continue
		}
		keep, failed := send(text)
		if failed != nil {
			return true, failed
		}
		if keep {
			continue
		}
		if failed := os.Remove(path); failed != nil && !errors.Is(failed, os.ErrNotExist) {
			return true, fmt.Errorf("spool: %w", failed)
		}
		s.bytes.Add(-int64(len(text)))
		more = true
	}
	return more, err
}

// list lists the files, the oldest first. The caller gives all of them to send before it lists them again.
func (s *Spool) list() (err error) {
	s.waiting.Store(false) // before: an Append meanwhile sets it again
	if s.left, err = disk.Glob(s.dir, "*"+suffix); len(s.left) > 0 {
		s.waiting.Store(true)
	}
	bytes := int64(0)
	for _, path := range s.left {
		if info, err := os.Lstat(path); err == nil { // otherwise another process has deleted it
			bytes += info.Size()
		}
	}
	s.bytes.Store(bytes)
	return err
}

// Waiting reports whether deliveries may not be drained yet.
func (s *Spool) Waiting() bool { return s.waiting.Load() }

// Bytes returns the size of all files in the directory.
func (s *Spool) Bytes() int64 { return s.bytes.Load() }

// Appended returns a channel that receives a value after calls of Append.
func (s *Spool) Appended() <-chan struct{} { return s.appended }
