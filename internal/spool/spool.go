package spool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Config limits a [Spool].
type Config struct {
	MaxBytes int64 // total size of the items, plus 64 bytes for each; default 1 GiB
	MaxItems int   // default 1,000,000
	Log      *slog.Logger
}

const (
	defaultMaxBytes = 1 << 30
	defaultMaxItems = 1_000_000
	itemCost        = 64 // bytes counted for each item in addition to its size
)

// The errors of a [Spool].
var (
	ErrFull   = errors.New("spool: full")
	ErrClosed = errors.New("spool: closed")
)

// Spool holds the items of one process and of the files that it has adopted. It is safe for concurrent use.
type Spool struct {
	cfg  Config
	dir  string
	work chan struct{} // signals that there is a batch to write
	more chan struct{} // signals that items were appended
	done sync.WaitGroup

	mu           sync.Mutex // guards the following; never held during disk access
	closed       bool
	batch        *batch
	items        int   // items in the own file, including those being appended
	bytes        int64 // total size of these items
	itemsAdopted int   // items in adopted files

	disk    sync.Mutex // held during disk access; guards the files
	own     *file
	adopted []*file
}

type batch struct {
	items [][]byte
	done  chan struct{} // closed once err is set
	err   error
}

// Open opens a spool in dir, which it creates if necessary. The caller must close the spool.
func Open(dir string, cfg Config) (*Spool, error) {
	cfg.MaxBytes, cfg.MaxItems = cmp.Or(cfg.MaxBytes, defaultMaxBytes), cmp.Or(cfg.MaxItems, defaultMaxItems)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.MaxBytes < 0 || cfg.MaxItems < 0 {
		return nil, fmt.Errorf("spool: MaxBytes %d, MaxItems %d: want positive numbers", cfg.MaxBytes, cfg.MaxItems)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	s := &Spool{
		cfg: cfg, dir: dir, work: make(chan struct{}, 1), more: make(chan struct{}, 1),
		batch: &batch{done: make(chan struct{})},
	}
	if err := s.openOwn(); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	s.done.Go(s.commit)
	return s, nil
}

// Append appends an item and returns nil when it is on disk. It returns [ErrFull] if a limit is reached. If ctx is done
// first, the item may or may not be kept.
func (s *Spool) Append(ctx context.Context, item []byte) error {
	cost := int64(len(item) + itemCost)
	s.mu.Lock()
	switch {
	case s.closed:
		s.mu.Unlock()
		return ErrClosed
	case s.bytes+cost > s.cfg.MaxBytes || s.items >= s.cfg.MaxItems:
		s.mu.Unlock()
		return ErrFull
	}
	s.items++
	s.bytes += cost
	b := s.batch
	b.items = append(b.items, item)
	wake(s.work)
	s.mu.Unlock()
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		s.cancel(b, item)
		return fmt.Errorf("spool: the disk does not respond: %w", context.Cause(ctx))
	}
}

// cancel removes an item from its batch unless it is being written, so that a hanging disk does not fill the memory.
func (s *Spool) cancel(b *batch, item []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.batch != b {
		return
	}
	same := func(other []byte) bool { return len(item) > 0 && len(other) > 0 && &other[0] == &item[0] }
	if i := slices.IndexFunc(b.items, same); i >= 0 {
		b.items = slices.Delete(b.items, i, i+1)
		s.items--
		s.bytes -= int64(len(item) + itemCost)
	}
}

func (s *Spool) commit() {
	for range s.work {
		s.mu.Lock()
		b := s.batch
		s.batch = &batch{done: make(chan struct{})}
		s.mu.Unlock()
		if len(b.items) == 0 {
			continue
		}
		if b.err = s.write(b.items); b.err != nil {
			b.err = fmt.Errorf("spool: %w", b.err)
			s.count(-len(b.items), -costOf(b.items))
		}
		close(b.done)
		if b.err == nil {
			wake(s.more)
		}
	}
}

// write appends items to the own file, and replaces it if it is damaged.
func (s *Spool) write(items [][]byte) error {
	s.disk.Lock()
	defer s.disk.Unlock()
	if err := s.ready(); err != nil {
		return err
	}
	err := s.own.append(items)
	if errors.Is(err, errDamaged) {
		if err := s.replace(err); err != nil {
			return err
		}
		err = s.own.append(items)
	}
	return err
}

// Len returns the number of items in this process's file, including those being appended.
func (s *Spool) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.items
}

// Stats returns the number of items, including those of adopted files, and the bytes that count against the limit.
func (s *Spool) Stats() (items int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.items + s.itemsAdopted, s.bytes
}

// Appended returns a channel that receives a value after items were appended.
func (s *Spool) Appended() <-chan struct{} { return s.more }

// Close waits for appends in progress and closes the files, so that others may adopt them. It deletes empty files.
func (s *Spool) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.work) // a signal sent earlier is still received
	s.mu.Unlock()
	s.done.Wait()
	s.disk.Lock()
	defer s.disk.Unlock()
	var errs []error
	for _, f := range append(s.adopted, s.own) {
		switch {
		case f.gone:
			continue
		case f.items == 0:
			f.remove()
			continue
		}
		errs = append(errs, f.close())
	}
	s.adopted, s.own = nil, nil
	return errors.Join(errs...)
}

func (s *Spool) count(items int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items += items
	s.bytes += bytes
}

func (s *Spool) path(n int) string { return filepath.Join(s.dir, fmt.Sprintf("%d%s", n, suffix)) }

func costOf(items [][]byte) (cost int64) {
	for _, item := range items {
		cost += int64(len(item) + itemCost)
	}
	return cost
}

// wake sends to a channel with a buffer of one, unless the buffer is full.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
