package serve

import (
	"context"
	"crypto/sha256"
	"testing"
	"time"
)

// TestSpoolShareOfASender has a sender that reads nothing of its packs, so that they take all the space they get, and another sender.
func TestSpoolShareOfASender(t *testing.T) {
	t.Parallel()
	const total = 40 << 20
	s := newSharing(t.TempDir(), 1<<30, total)
	stalled := make(chan string, 4)
	start := func(name, sender string, size int) *packReader {
		t.Helper()
		rest := func(_ context.Context, wait func() error) error {
			stalled <- sender
			return wait()
		}
		r, _, err := s.join(sha256.Sum256([]byte(name)), sender, rest, func(_ context.Context, write func([]byte) (int, error)) error {
			for part := make([]byte, minSpool); size > 0; size -= len(part) {
				if _, err := write(part); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	readers := []*packReader{start("1", "greedy", 100<<20), start("2", "greedy", 100<<20), start("3", "greedy", 100<<20)}
	for range readers {
		select {
		case <-stalled:
		case <-time.After(time.Minute):
			t.Fatalf("a pack of the greedy sender does not wait for space: %d bytes are used", s.space.used)
		}
	}
	if used := s.space.used; used > total/4 {
		t.Errorf("%d bytes of %d are used: the greedy sender has more than a quarter", used, total)
	}
	modest := start("4", "modest", 8<<20)
	select {
	case <-modest.pack.made:
	case <-time.After(time.Minute):
		t.Error("the other sender has no space for 8 MiB")
	}
	for _, r := range append(readers, modest) {
		r.close()
	}
	if s.space.used != 0 || len(s.space.by) > 0 {
		t.Errorf("%d bytes are used at the end, by %d senders", s.space.used, len(s.space.by))
	}
	s.close()
}
