package spool

import (
	"errors"
	"fmt"
)

// Item is an item returned by [Spool.Peek].
type Item struct {
	Data []byte

	key  uint64
	file *file
}

// Peek returns up to most of the oldest items. It returns the same items until they are dropped or requeued.
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

// Drop removes items returned by [Spool.Peek].
func (s *Spool) Drop(items ...Item) error { return s.settle(items, false) }

// Requeue moves items returned by [Spool.Peek] to the end. Items of an adopted file move to this process' file, which is
// read only once the adopted files are empty. If the process is killed during the move, they remain in both.
func (s *Spool) Requeue(items ...Item) error {
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

func (s *Spool) settle(items []Item, requeue bool) error {
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
		if f.gone { // found damaged meanwhile
			items = items[n:]
			continue
		}
		err := f.settle(items[:n], requeue)
		switch {
		case errors.Is(err, errDamaged) && f == s.own:
			return s.replace(err)
		case errors.Is(err, errDamaged):
			s.disown(f, err)
		case err != nil:
			return fmt.Errorf("spool: %w", err)
		case !requeue:
			s.dropped(f, items[:n])
		}
		items = items[n:]
	}
	return nil
}

// dropped updates the counters and deletes an adopted file that is empty.
func (s *Spool) dropped(f *file, items []Item) {
	var bytes int64
	for _, item := range items {
		bytes += int64(len(item.Data) + itemCost)
	}
	if f == s.own {
		s.count(-len(items), -bytes)
		return
	}
	s.mu.Lock()
	s.itemsAdopted -= len(items)
	s.mu.Unlock()
	if f.items == 0 {
		s.forget(f)
		f.remove()
	}
}
