package operate

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/locking"
)

func TestSharedListIsCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list, lists, failed := &leaseList{turn: make(chan struct{}, 1)}, 0, error(nil)
		read := func() ([]locking.Status, error) {
			return list.read(t.Context(), func(context.Context) ([]locking.Status, error) {
				time.Sleep(100 * time.Millisecond)
				lists++
				return []locking.Status{{Key: "acme/widgets"}}, failed
			})
		}
		expect := func(want int) {
			t.Helper()
			if held, err := read(); err != nil || len(held) != 1 || lists != want {
				t.Errorf("%v, %v, listed %d times, want %d", held, err, lists, want)
			}
		}
		for range 10 {
			go func() { _, _ = read() }()
		}
		synctest.Wait()
		time.Sleep(2099 * time.Millisecond) // 100 ms plus twenty times that
		expect(1)
		time.Sleep(time.Millisecond)
		expect(2)
		list.released.Store(time.Now().UnixNano())
		expect(3)
		expect(3)
		time.Sleep(time.Minute)
		failed = errors.New("redis is away")
		for range 2 { // errors are not cached
			if _, err := read(); !errors.Is(err, failed) {
				t.Errorf("%v", err)
			}
		}
		if lists != 5 {
			t.Errorf("listed %d times, want once per failed call", lists)
		}
	})
}
