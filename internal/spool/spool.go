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

// Config says how much a [Spool] may hold. Its zero value has defaults.
type Config struct {
	MaxBytes int64 // in all items that are not dropped yet, with 64 bytes for each; 0: 1 GiB
	MaxItems int   // 0: 1,000,000
	Log      *slog.Logger
}

const (
	defaultMaxBytes = 1 << 30
	defaultMaxItems = 1_000_000
	itemCost        = 64 // bytes that an item is counted for beside its own
)

// The errors of a [Spool].
var (
	ErrFull   = errors.New("spool: full")
	ErrClosed = errors.New("spool: closed")
)

// Spool is one process's part of a folder, and what it has adopted. It is safe for concurrent use.
type Spool struct {
	cfg  Config
	dir  string
	work chan struct{} // there is something to commit
	more chan struct{} // something was appended
	done sync.WaitGroup

	mu       sync.Mutex // guards what follows, and is never held over disk access
	closed   bool
	batch    *batch
	items    int   // of our own file, with those that are being appended
	bytes    int64 // likewise
	elsewise int   // items of adopted files

	disk    sync.Mutex // held over disk access; guards the files
	own     *file
	adopted []*file
}

// batch is what one commit will write.
type batch struct {
	items [][]byte
	done  chan struct{} // closed when err is known
	err   error
}

// Open takes a file in dir, which is made if need be. The caller closes the spool.
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
	if err := s.takeFile(); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	s.done.Go(s.commit)
	return s, nil
}

// Append returns nil when the item is on disk. It fails with [ErrFull] when there is no room for it.
// When ctx ends before it is known, the item may be kept all the same.
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
		s.forgo(b, item)
		return fmt.Errorf("spool: the disk does not answer: %w", context.Cause(ctx))
	}
}

// forgo takes an item that nobody waits for any more out of its batch, unless the disk has that already: under one
// that hangs, items would fill the memory.
func (s *Spool) forgo(b *batch, item []byte) {
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

// commit writes batches until the spool is closed: all that have come during one write go with the next.
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

// write adds items to our own file, or to the one that takes its place.
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

// Item is an item that was given out.
type Item struct {
	Data []byte

	key  uint64
	file *file
}

// Peek returns the oldest items, at most so many, and none only if there are none. They are returned
// again until they are dropped.
func (s *Spool) Peek(most int) ([]Item, error) {
	s.disk.Lock()
	defer s.disk.Unlock()
	if err := s.ready(); err != nil {
		return nil, err
	}
	for len(s.adopted) > 0 {
		f := s.adopted[0]
		items, err := f.peek(most)
		if errors.Is(err, errDamaged) {
			s.disown(f, err)
			continue
		}
		return items, err
	}
	items, err := s.own.peek(most)
	if errors.Is(err, errDamaged) {
		return nil, s.replace(err)
	}
	return items, err
}

// Drop forgets items that [Spool.Peek] has returned.
func (s *Spool) Drop(items ...Item) error { return s.settle(items, false) }

// SetBack puts items that [Spool.Peek] has returned behind all others. Those of an adopted file become our own: as
// long as one is left there, ours do not have their turn. Killed in between, it leaves them in both.
func (s *Spool) SetBack(items ...Item) error {
	var own, adopted []Item
	var data [][]byte
	for _, item := range items {
		if !item.file.adopted {
			own = append(own, item)
			continue
		}
		adopted, data = append(adopted, item), append(data, item.Data)
	}
	if len(data) > 0 {
		if err := s.write(data); err != nil {
			return fmt.Errorf("spool: %w", err)
		}
		s.count(len(data), costOf(data))
	}
	return errors.Join(s.settle(adopted, false), s.settle(own, true))
}

func (s *Spool) settle(items []Item, back bool) error {
	s.disk.Lock()
	defer s.disk.Unlock()
	if err := s.ready(); err != nil {
		return err
	}
	for len(items) > 0 {
		f, n := items[0].file, 1
		for n < len(items) && items[n].file == f {
			n++
		}
		if f.gone { // it was damaged since
			items = items[n:]
			continue
		}
		err := f.settle(items[:n], back)
		switch {
		case errors.Is(err, errDamaged) && f == s.own:
			return s.replace(err)
		case errors.Is(err, errDamaged):
			s.disown(f, err)
		case err != nil:
			return fmt.Errorf("spool: %w", err)
		case !back:
			s.settled(f, items[:n])
		}
		items = items[n:]
	}
	return nil
}

// settled counts what was dropped, and deletes an adopted file that has nothing any more.
func (s *Spool) settled(f *file, items []Item) {
	var bytes int64
	for _, item := range items {
		bytes += int64(len(item.Data) + itemCost)
	}
	if f == s.own {
		s.count(-len(items), -bytes)
		return
	}
	s.mu.Lock()
	s.elsewise -= len(items)
	s.mu.Unlock()
	if f.items == 0 {
		s.forget(f)
		f.remove()
	}
}

// Len is how many items this process has appended that are not dropped yet, those that are being
// appended among them.
func (s *Spool) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.items
}

// Figures are how many items the spool has, with those of adopted files, and how many bytes it counts
// against its limit.
func (s *Spool) Figures() (items int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.items + s.elsewise, s.bytes
}

// Appended receives a value after something was appended, if nobody has received one since.
func (s *Spool) Appended() <-chan struct{} { return s.more }

// Close waits for appends under way, and gives the files up for others to adopt. One that is empty is deleted.
func (s *Spool) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.work) // what was sent before is still received
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

// wake leaves a value in a channel that has room for one, unless there is one.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
