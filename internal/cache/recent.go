package cache

import (
	"container/list"
	"sync"
)

// Recent has the values that were used most recently, up to a total weight. It is safe for concurrent use.
type Recent[T any] struct {
	most int

	mu     sync.Mutex
	weight int
	byKey  map[string]*list.Element // of *weighed[T]
	recent *list.List               // most recently used first
}

type weighed[T any] struct {
	key    string
	value  T
	weight int
}

// NewRecent returns a Recent for values of this total weight.
func NewRecent[T any](most int) *Recent[T] {
	return &Recent[T]{most: most, byKey: map[string]*list.Element{}, recent: list.New()}
}

// Get returns the value with a key, or false if there is none.
func (r *Recent[T]) Get(key string) (value T, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.byKey[key]
	if !ok {
		return value, false
	}
	r.recent.MoveToFront(e)
	return e.Value.(*weighed[T]).value, true
}

// Put replaces the value with a key. One without weight is not kept.
func (r *Recent[T]) Put(key string, value T, weight int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(key)
	if weight == 0 {
		return
	}
	r.byKey[key] = r.recent.PushFront(&weighed[T]{key, value, weight})
	for r.weight += weight; r.weight > r.most; {
		r.drop(r.recent.Back().Value.(*weighed[T]).key)
	}
}

func (r *Recent[T]) drop(key string) {
	if e, ok := r.byKey[key]; ok {
		delete(r.byKey, key)
		r.weight -= r.recent.Remove(e).(*weighed[T]).weight
	}
}
