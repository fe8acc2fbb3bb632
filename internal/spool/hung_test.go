package spool

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// While the disk hangs during a write, appends whose context is done use neither memory nor space.
func TestCanceledAppendsAreRemovedWhileTheDiskHangs(t *testing.T) {
	s, err := Open(t.TempDir(), Config{MaxItems: 3})
	if err != nil {
		t.Fatal(err)
	}
	s.disk.Lock()
	first := make(chan error, 1)
	go func() { first <- s.Append(t.Context(), []byte("first")) }()
	for s.inBatch() > 0 || s.Len() == 0 { // until it is being written
		time.Sleep(time.Millisecond)
	}
	waits := make(chan error, 1)
	go func() { waits <- s.Append(t.Context(), []byte("waits")) }()
	for s.inBatch() == 0 {
		time.Sleep(time.Millisecond)
	}
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := s.Append(ctx, []byte("given up")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want a disk that does not respond", err)
		}
		cancel()
	}
	if n, bytes := s.Stats(); n != 2 || bytes != 2*(5+itemCost) {
		t.Errorf("counts %d items and %d bytes, want those of the two pending appends", n, bytes)
	}
	s.disk.Unlock()
	if err := errors.Join(<-first, <-waits); err != nil {
		t.Error(err)
	}
	items, err := s.Peek(10)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, item := range items {
		got = append(got, string(item.Data))
	}
	if want := []string{"first", "waits"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func (s *Spool) inBatch() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.batch.items)
}
