package server_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/internal/server"
	"lockstep/locking"
)

// slowLocks lists slowly and counts its listings.
type slowLocks struct {
	server.Locks
	delay time.Duration
	err   error
	lists int
}

func (s *slowLocks) ForceRelease(context.Context, string, uint64) (locking.Holder, error) {
	return locking.Holder{}, s.err
}

func (s *slowLocks) List(context.Context) ([]locking.Status, error) {
	time.Sleep(s.delay)
	s.lists++
	return []locking.Status{{Key: "acme/widgets"}}, s.err
}

func TestSharedListIsCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := &slowLocks{delay: 100 * time.Millisecond}
		shared := server.ShareLocks(locks)
		list := func() {
			t.Helper()
			if held, err := shared.List(t.Context()); err != nil || len(held) != 1 {
				t.Errorf("%v, %v", held, err)
			}
		}
		for range 10 {
			go list()
		}
		synctest.Wait()
		time.Sleep(2099 * time.Millisecond) // 100 ms plus twenty times that
		list()
		if locks.lists != 1 {
			t.Errorf("listed %d times within 2.1 s, want once", locks.lists)
		}
		time.Sleep(time.Millisecond)
		list()
		if locks.lists != 2 {
			t.Errorf("listed %d times, want a second time after 2.1 s", locks.lists)
		}
		time.Sleep(time.Minute)
		locks.err = errors.New("redis is away")
		for range 2 { // errors are not cached
			if _, err := shared.List(t.Context()); !errors.Is(err, locks.err) {
				t.Errorf("%v", err)
			}
		}
		if locks.lists != 4 {
			t.Errorf("listed %d times, want once per failed call", locks.lists)
		}
	})
}

func TestForceReleaseInvalidatesSharedList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := &slowLocks{delay: time.Second}
		shared := server.ShareLocks(locks)
		for want := 1; want <= 2; want++ {
			if _, err := shared.List(t.Context()); err != nil || locks.lists != want {
				t.Errorf("listed %d times, want %d: %v", locks.lists, want, err)
			}
			if _, err := shared.ForceRelease(t.Context(), "acme/widgets", 1); err != nil {
				t.Error(err)
			}
		}
	})
}
