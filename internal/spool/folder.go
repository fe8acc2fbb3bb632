package spool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	suffix  = ".bolt"
	maxFile = 1000 // processes that may share a folder
)

// takeFile makes the first file of the folder that nobody has our own. What a dead process has left in
// it comes with it.
func (s *Spool) takeFile() error {
	for n := range maxFile {
		f, err := s.open(s.path(n))
		if errors.Is(err, errTaken) {
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
		return syncFolder(s.dir) // or the file might be gone after a power cut, with all that was synced in it
	}
	return fmt.Errorf("%d processes have a file in %s already", maxFile, s.dir)
}

// open opens a file, or a new one in its place when it is damaged. It returns [errTaken] for another's.
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
	return nil, fmt.Errorf("%s: damaged again each time it is made", path)
}

// Adopt takes over what dead processes have left in the folder, and returns how many items that is.
func (s *Spool) Adopt() (items int, err error) {
	s.disk.Lock()
	defer s.disk.Unlock()
	if err := s.ready(); err != nil {
		return 0, err
	}
	paths, err := filepath.Glob(filepath.Join(s.dir, "*"+suffix))
	if err != nil {
		return 0, fmt.Errorf("spool: %w", err)
	}
	for _, path := range paths {
		if path == s.own.path || slices.ContainsFunc(s.adopted, func(f *file) bool { return f.path == path }) {
			continue
		}
		f, err := openFile(path)
		switch {
		case errors.Is(err, errTaken):
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
			s.elsewise += f.items
			s.mu.Unlock()
			items += f.items
		}
	}
	if items > 0 {
		wake(s.more)
	}
	return items, nil
}

// ready makes sure that there is a file of our own: there is none after [Spool.Close], or when a damaged
// one could not be replaced.
func (s *Spool) ready() error {
	switch {
	case s.own == nil:
		return ErrClosed
	case s.own.gone:
		return s.takeFile()
	}
	return nil
}

// replace moves our own file aside, which is damaged, and takes a new one.
func (s *Spool) replace(damage error) error {
	damaged := s.own
	s.count(-damaged.items, -damaged.bytes)
	if err := errors.Join(s.moveAside(damaged.path, damage), damaged.abandon()); err != nil {
		return err
	}
	return s.takeFile()
}

// disown moves an adopted file aside, which is damaged.
func (s *Spool) disown(f *file, damage error) {
	s.forget(f)
	s.mu.Lock()
	s.elsewise -= f.items
	s.mu.Unlock()
	_ = errors.Join(s.moveAside(f.path, damage), f.abandon()) // nobody needs it any more
}

func (s *Spool) forget(f *file) {
	s.adopted = slices.DeleteFunc(s.adopted, func(other *file) bool { return other == f })
}

// moveAside renames a damaged file, so that it is neither used nor lost.
func (s *Spool) moveAside(path string, damage error) error {
	aside := strings.TrimSuffix(path, suffix) + ".damaged-" + time.Now().UTC().Format("20060102T150405.000000000Z")
	err := os.Rename(path, aside)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another process has
	}
	if err != nil {
		return err
	}
	s.cfg.Log.ErrorContext(context.Background(), "a spool file is damaged; what was in it is not delivered", "path", aside, "error", damage)
	return nil
}

func syncFolder(dir string) error {
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
