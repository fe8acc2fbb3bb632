package cache_test

import (
	"testing"

	"lockstep/internal/cache"
)

func TestRecentKeepsWhatWasUsedLast(t *testing.T) {
	r := cache.NewRecent[int](4)
	r.Put("a", 1, 2)
	r.Put("b", 2, 1)
	r.Put("c", 3, 1)
	r.Get("a")
	r.Put("d", 4, 1)
	r.Put("e", 5, 0)
	r.Put("c", 6, 0)
	r.Put("huge", 7, 5)
	has := func(key string, want int, isKept bool) {
		t.Helper()
		if got, ok := r.Get(key); ok != isKept || isKept && got != want {
			t.Errorf("%s: %d, %v", key, got, ok)
		}
	}
	has("huge", 7, false)
	has("a", 1, false) // all made room for that
	r.Put("a", 1, 2)
	r.Put("b", 2, 2)
	r.Get("a")
	r.Put("c", 3, 2)
	has("a", 1, true)
	has("b", 2, false)
	has("c", 3, true)
	r.Put("c", 0, 0)
	has("c", 0, false)
}
