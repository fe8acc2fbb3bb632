// Package spool keeps deliveries in files on the local disk while their destination is unreachable.
//
//	s, err := spool.Open("spool", 1<<30)
//	err = s.Append(ctx, text)     // on disk when it returns nil
//	more, err := s.Drain(send)    // gives the text of each file to send, the oldest first, and deletes it once it
//	                              is sent
//
// Each delivery is a file, which is complete once it has its name. Any process with the directory sends it,
// so those of a process that never returns are not lost; two may send the same one.
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
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/internal/disk"
)

// ErrFull means that the files take as much space as they may.
var ErrFull = errors.New("spool: full")

const (
	suffix     = ".json"
	atOnce     = 64              // files that are written at a time: the file system syncs them together
	block      = 4 << 10         // of a file system
	countEvery = 5 * time.Second // how often a full spool looks whether another process has drained it
)

// Spool is a directory of deliveries. It is safe for concurrent use, except for Drain.
type Spool struct {
	dir      string
	maxBytes int64
	slots    chan struct{}
	appended chan struct{}
	written  atomic.Int64 // number of files that this process has added
	listed   atomic.Int64 // written, before Drain last listed the files
	unsent   atomic.Bool  // some files of that list were not given to send yet
	stored   atomic.Int64 // space of all files when they were counted, and changes by this process since

	mu       sync.Mutex // held while files are counted or removed, so for as long as the disk hangs
	reserved int64      // space of files that are being written
	counted  time.Time

	left []string        // paths that Drain has listed, and not given to send yet
	kept map[string]bool // paths that Drain was asked to keep
}

// Open opens a spool in dir, which it creates if necessary. maxBytes limits the space of all files in it.
func Open(dir string, maxBytes int64) (*Spool, error) {
	s := &Spool{
		dir: dir, maxBytes: maxBytes, slots: make(chan struct{}, atOnce), appended: make(chan struct{}, 1),
		kept: map[string]bool{},
	}
	if err := probe(dir); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	if err := s.list(); err != nil {
		return nil, err
	}
	temps, _ := disk.Glob(dir, "*"+disk.TempInfix+"*")
	for _, path := range temps { // of writers that crashed
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) > time.Hour {
			_ = os.Remove(path)
		}
	}
	return s, nil
}

// probe creates a directory and checks that it can be written to.
func probe(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(dir, rand.Text()+disk.TempInfix)
	if err := disk.WriteNew(path, nil); err != nil {
		return err
	}
	return os.Remove(path)
}

// Append adds a delivery and returns nil when it is on disk. It returns [ErrFull] beyond the limit. If ctx is
// done first, the delivery may or may not be kept. The caller must not change text afterwards.
func (s *Spool) Append(ctx context.Context, text []byte) error {
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
	space := spaceOf(int64(len(text)))
	if err := s.reserve(space); err != nil {
		return err
	}
	name := time.Now().UTC().Format("20060102T150405.000000000") + "-" + rand.Text()[:8] + suffix
	err := disk.ReplacePrivate(filepath.Join(s.dir, name), text)
	s.mu.Lock()
	s.reserved -= space
	if err == nil {
		s.stored.Add(space)
	}
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	s.written.Add(1)
	select {
	case s.appended <- struct{}{}:
	default:
	}
	return nil
}

// spaceOf returns the space of a file of n bytes: whole blocks, and another one for its inode. ext4 has one
// inode per 16 KiB, so a disk of twice the limit has about as many inodes as the spool may have files.
func spaceOf(n int64) int64 { return (n+block-1)/block*block + block }

// reserve reserves space for a file, or returns ErrFull. Before that it counts the files again: other
// processes remove some.
func (s *Spool) reserve(space int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	isFull := func() bool { return s.stored.Load()+s.reserved+space > s.maxBytes }
	if isFull() && time.Since(s.counted) > countEvery {
		if _, err := s.count(); err != nil {
			return err
		}
	}
	if isFull() {
		return ErrFull
	}
	s.reserved += space
	return nil
}

// count returns the files, the oldest first, and counts their space. The caller holds mu.
func (s *Spool) count() (paths []string, err error) {
	if paths, err = disk.Glob(s.dir, "*"+suffix); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	space := int64(0)
	for _, path := range paths {
		if info, err := os.Lstat(path); err == nil { // otherwise another process has deleted it
			space += spaceOf(info.Size())
		}
	}
	s.stored.Store(space)
	s.counted = time.Now()
	return paths, nil
}

// Drain gives each delivery to send and deletes it unless keep is set: then it is given again by a later
// pass, with again set. If send fails, the next Drain continues with that delivery. more reports whether to
// drain again at once: deliveries were deleted, and there may be others.
func (s *Spool) Drain(send func(text []byte, again bool) (keep bool, err error)) (more bool, err error) {
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
		keep, failed := send(text, s.kept[path])
		if failed != nil {
			return true, failed
		}
		if keep {
			s.kept[path] = true
			continue
		}
		if failed := s.remove(path, spaceOf(int64(len(text)))); failed != nil {
			return true, failed
		}
		more = true
	}
	s.unsent.Store(false)
	return more, err
}

func (s *Spool) remove(path string, space int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("spool: %w", err)
	}
	s.stored.Add(-space)
	return nil
}

// list lists the files, the oldest first. The caller gives all of them to send before it lists them again.
func (s *Spool) list() (err error) {
	written := s.written.Load() // before: what is written meanwhile may not be in the list
	s.mu.Lock()
	s.left, err = s.count()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	maps.DeleteFunc(s.kept, func(path string, _ bool) bool {
		_, isThere := slices.BinarySearch(s.left, path)
		return !isThere
	})
	s.unsent.Store(slices.ContainsFunc(s.left, func(path string) bool { return !s.kept[path] }))
	s.listed.Store(written)
	return nil
}

// Waiting reports whether there may be deliveries that were never given to send. Kept ones are not waited for.
func (s *Spool) Waiting() bool { return s.unsent.Load() || s.written.Load() != s.listed.Load() }

// Bytes returns the space that all files in the directory take.
func (s *Spool) Bytes() int64 { return s.stored.Load() }

// Appended returns a channel that receives a value after calls of Append.
func (s *Spool) Appended() <-chan struct{} { return s.appended }
