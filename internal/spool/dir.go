package spool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/disk"
)

const (
	suffix  = ".bolt"
	maxFile = 1000 // maximum processes that may share a directory
)

// openOwn opens the first file of the directory that no process has locked. It may contain items of a dead process.
func (s *Spool) openOwn() error {
	for n := range maxFile {
		f, err := s.open(s.path(n))
		if errors.Is(err, errLocked) {
			continue
		}
		if err != nil {
			return err
		}
		s.own = f
		s.count(f.items, f.bytes)
		if f.items > 0 {
			wake(s.more)
		}
		return syncDir(s.dir) // otherwise a power loss could remove a new file with all its items
	}
	return fmt.Errorf("%d processes already use %s", maxFile, s.dir)
}

// open opens a file. It replaces a damaged one. It returns [errLocked] if another process uses it.
func (s *Spool) open(path string) (*file, error) {
	for range 3 {
		f, err := openFile(path)
		if !errors.Is(err, errDamaged) {
			return f, err
		}
		if err := s.moveAside(path, err); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: still damaged after it was replaced", path)
}

// Adopt takes over the files of dead processes and returns the number of their items.
func (s *Spool) Adopt() (items int, err error) {
	s.disk.Lock()
	defer s.disk.Unlock()
	if err := s.ready(); err != nil {
		return 0, err
	}
	paths, err := disk.Glob(s.dir, "*"+suffix)
	if err != nil {
		return 0, fmt.Errorf("spool: %w", err)
	}
	for _, path := range paths {
		if path == s.own.path || slices.ContainsFunc(s.adopted, func(f *file) bool { return f.path == path }) {
			continue
		}
		f, err := openFile(path)
		switch {
		case errors.Is(err, errLocked):
		case errors.Is(err, errDamaged):
			if err := s.moveAside(path, err); err != nil {
				return items, fmt.Errorf("spool: adopt: %w", err)
			}
		case err != nil:
			return items, fmt.Errorf("spool: adopt %s: %w", path, err)
		case f.items == 0:
			f.remove()
		default:
			f.adopted = true
			s.adopted = append(s.adopted, f)
			s.mu.Lock()
			s.itemsAdopted += f.items
			s.mu.Unlock()
			items += f.items
		}
	}
	if items > 0 {
		wake(s.more)
	}
	return items, nil
}

// ready ensures that this process has a file, unless the spool is closed.
func (s *Spool) ready() error {
	switch {
	case s.own == nil:
		return ErrClosed
	case s.own.gone:
		return s.openOwn()
	}
	return nil
}

// replace moves this process' damaged file aside and opens a new one.
func (s *Spool) replace(damage error) error {
	damaged := s.own
	s.count(-damaged.items, -damaged.bytes)
	if err := errors.Join(s.moveAside(damaged.path, damage), damaged.abandon()); err != nil {
		return err
	}
	return s.openOwn()
}

func (s *Spool) disown(f *file, damage error) {
	s.forget(f)
	s.mu.Lock()
	s.itemsAdopted -= f.items
	s.mu.Unlock()
	_ = errors.Join(s.moveAside(f.path, damage), f.abandon()) // best effort
}

func (s *Spool) forget(f *file) {
	s.adopted = slices.DeleteFunc(s.adopted, func(other *file) bool { return other == f })
}

// moveAside renames a damaged file, to keep it for inspection.
func (s *Spool) moveAside(path string, damage error) error {
	aside := strings.TrimSuffix(path, suffix) + ".damaged-" + time.Now().UTC().Format("20060102T150405.000000000Z")
	err := os.Rename(path, aside)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another process has moved it
	}
	if err != nil {
		return err
	}
	s.cfg.Log.ErrorContext(context.Background(), "spool file damaged, its items are not delivered", "path", aside, "error", damage)
	return nil
}

func syncDir(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Fsync(fd); err != nil {
		return &fs.PathError{Op: "sync", Path: dir, Err: err}
	}
	return nil
}
