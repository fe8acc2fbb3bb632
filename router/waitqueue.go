package router

import (
	"container/heap"
	"slices"
)

// waitQueue orders the waiters for a slot by when their key was last served, the least recent first.
//
// Served keys are ordered by turn, which counts the first slots granted. The queue remembers the keys of a number of turns.
// A key without any of them has the rank of a turn just before, at the time it starts to wait: a key that was served waits
// for no more new keys than that number, even if they never end. Keys of the same rank are in order of arrival.
type waitQueue struct {
	len     int // number of waiters
	keys    keyHeap
	byKey   map[string]*keyQueue // of the waiters for their first slot
	arrived uint64               // number of key queues so far

	turn   uint64
	served map[string]uint64 // last turn of each key in recent
	recent []string          // keys of the last turns, at the turn modulo the length
}

// waiter waits for a slot.
type waiter struct {
	slot  *slot
	queue *keyQueue  // nil once it waits no more
	ended chan error // receives the end of the wait; has room for it
}

func (w *waiter) end(err error) { w.ended <- err }

// keyQueue holds the waiters of one key in order of arrival, or one waiter that had a slot before.
type keyQueue struct {
	key     string
	rank    uint64
	arrival uint64
	waiters []*waiter
	index   int // in the heap
}

func newWaitQueue(recent int) waitQueue {
	return waitQueue{
		byKey: map[string]*keyQueue{}, served: map[string]uint64{}, recent: make([]string, recent),
		turn: uint64(recent), // so that there is a turn before all remembered ones
	}
}

// add adds a waiter.
func (q *waitQueue) add(t *slot) *waiter {
	k := q.byKey[t.key]
	if k == nil || t.started {
		q.arrived++
		k = &keyQueue{key: t.key, rank: t.rank, arrival: q.arrived}
		if !t.started {
			k.rank = max(q.served[t.key], q.turn-uint64(len(q.recent)))
			q.byKey[t.key] = k
		}
		heap.Push(&q.keys, k)
	}
	w := &waiter{slot: t, queue: k, ended: make(chan error, 1)}
	k.waiters = append(k.waiters, w)
	q.len++
	return w
}

// next removes and returns the first waiter, which gets a slot. There must be one.
func (q *waitQueue) next() *waiter {
	k := q.keys[0]
	w := k.waiters[0]
	if !w.slot.started {
		w.slot.rank = k.rank
		q.serve(k.key)
		k.rank = q.turn // of the waiters that remain
	}
	q.remove(w)
	return w
}

// serve records a turn of a key.
func (q *waitQueue) serve(key string) {
	q.turn++
	recent := uint64(len(q.recent))
	oldest := &q.recent[q.turn%recent]
	if q.served[*oldest] == q.turn-recent {
		delete(q.served, *oldest)
	}
	*oldest, q.served[key] = key, q.turn
}

// remove removes a waiter.
func (q *waitQueue) remove(w *waiter) {
	k := w.queue
	i := slices.Index(k.waiters, w)
	k.waiters = slices.Delete(k.waiters, i, i+1)
	if len(k.waiters) > 0 {
		heap.Fix(&q.keys, k.index)
	} else {
		heap.Remove(&q.keys, k.index)
		if q.byKey[k.key] == k {
			delete(q.byKey, k.key)
		}
	}
	w.queue = nil
	q.len--
}

// firstTime returns the waiters that have not had a slot before.
func (q *waitQueue) firstTime() []*waiter {
	var all []*waiter
	for _, k := range q.byKey {
		all = append(all, k.waiters...)
	}
	return all
}

// keyHeap implements [heap.Interface].
type keyHeap []*keyQueue

func (h keyHeap) Len() int { return len(h) }

func (h keyHeap) Less(i, j int) bool {
	if h[i].rank != h[j].rank {
		return h[i].rank < h[j].rank
	}
	return h[i].arrival < h[j].arrival
}

func (h keyHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements [heap.Interface].
func (h *keyHeap) Push(x any) {
	k := x.(*keyQueue)
	k.index = len(*h)
	*h = append(*h, k)
}

// Pop implements [heap.Interface].
func (h *keyHeap) Pop() any {
	last := len(*h) - 1
	k := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return k
}
