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

// slowLocks takes a while to list, and counts how often it is asked to.
type slowLocks struct {
	server.Locks
	takes time.Duration
	err   error
	asked int
}

func (s *slowLocks) ForceRelease(context.Context, string, uint64) (locking.Holder, error) {
	return locking.Holder{}, s.err
}

func (s *slowLocks) List(context.Context) ([]locking.Status, error) {
	time.Sleep(s.takes)
	s.asked++
	return []locking.Status{{Key: "acme/widgets"}}, s.err
}

func TestAListOfLocksIsSharedForAsLongAsItIsDear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := &slowLocks{takes: 100 * time.Millisecond}
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
		time.Sleep(2099 * time.Millisecond) // 100 ms, and twenty times that
		list()
		if locks.asked != 1 {
			t.Errorf("asked %d times within 2.1 s, want once", locks.asked)
		}
		time.Sleep(time.Millisecond)
		list()
		if locks.asked != 2 {
			t.Errorf("asked %d times, want anew after that", locks.asked)
		}
		time.Sleep(time.Minute)
		locks.err = errors.New("redis is away")
		for range 2 { // an error is nobody else's
			if _, err := shared.List(t.Context()); !errors.Is(err, locks.err) {
				t.Errorf("%v", err)
			}
		}
		if locks.asked != 4 {
			t.Errorf("asked %d times, want one for each that failed", locks.asked)
		}
	})
}

func TestAListOfLocksDoesNotShowALeaseThatWasTakenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := &slowLocks{takes: time.Second}
		shared := server.ShareLocks(locks)
		for want := 1; want <= 2; want++ {
			if _, err := shared.List(t.Context()); err != nil || locks.asked != want {
				t.Errorf("asked %d times, want %d: %v", locks.asked, want, err)
			}
			if _, err := shared.ForceRelease(t.Context(), "acme/widgets", 1); err != nil {
				t.Error(err)
			}
		}
	})
}
