package stream

import (
	"maps"
	"slices"
	"sync"
)

// flight tracks the deliveries in flight, from the moment an entry is taken until its end is written to Redis.
// It counts them and their bytes, and limits them per key to keyLimit. While more than half of the window is in use, the
// limit is one, so that there is room for other keys.
type flight struct {
	freed            chan struct{} // has a token if a delivery may have left since the last receive
	window, keyLimit int

	mu        sync.Mutex
	count     int
	held      int64 // bytes
	byEntry   map[string]*Delivery
	byKey     map[string]map[string]*Delivery
	overLimit map[string]bool // keys with parked entries that are waiting for capacity
}

func newFlight(window, keyLimit int) *flight {
	return &flight{
		freed: make(chan struct{}, 1), window: window, keyLimit: keyLimit,
		byEntry: make(map[string]*Delivery), byKey: make(map[string]map[string]*Delivery), overLimit: make(map[string]bool),
	}
}

// hasCapacity reports whether another delivery of key may enter. If not, the key is marked as over the limit. New entries
// wait while parked ones of their key do.
func (f *flight) hasCapacity(key string, isNew bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if key == "" || f.capacity(key) > 0 && !(isNew && f.overLimit[key]) {
		return true
	}
	f.overLimit[key] = true
	return false
}

// enter adds d. It returns a previous delivery of the same entry, which still counts until it leaves.
func (f *flight) enter(d *Delivery) (former *Delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	former = f.byEntry[d.entry]
	f.byEntry[d.entry] = d
	f.count++
	f.held += d.bytes
	if d.key != "" {
		if f.byKey[d.key] == nil {
			f.byKey[d.key] = make(map[string]*Delivery)
		}
		f.byKey[d.key][d.entry] = d
	}
	return former
}

// leave removes d, and reports whether parked entries of its key may now be unparked.
func (f *flight) leave(d *Delivery) (hasCapacity bool) {
	f.mu.Lock()
	f.count--
	f.held -= d.bytes
	if f.byEntry[d.entry] == d {
		delete(f.byEntry, d.entry)
		delete(f.byKey[d.key], d.entry)
		if len(f.byKey[d.key]) == 0 {
			delete(f.byKey, d.key)
		}
	}
	hasCapacity = f.overLimit[d.key] && f.capacity(d.key) > 0
	f.mu.Unlock()
	select {
	case f.freed <- struct{}{}:
	default:
	}
	return hasCapacity
}

// capacity returns how many more deliveries of key may enter. The caller holds mu.
func (f *flight) capacity(key string) int {
	limit := f.keyLimit
	if 2*f.count > f.window {
		limit = 1
	}
	return max(0, limit-len(f.byKey[key]))
}

// keysWithCapacity returns the keys over the limit that have capacity again, with that capacity, and unmarks them.
func (f *flight) keysWithCapacity() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	room := make(map[string]int)
	for key := range f.overLimit {
		if n := f.capacity(key); n > 0 {
			room[key] = n
			delete(f.overLimit, key)
		}
	}
	return room
}

// canUnpark reports whether a key over the limit has capacity.
func (f *flight) canUnpark() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.overLimit {
		if f.capacity(key) > 0 {
			return true
		}
	}
	return false
}

func (f *flight) markOverLimit(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.overLimit[key] = true
}

func (f *flight) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

func (f *flight) bytes() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held
}

func (f *flight) find(entry string) *Delivery {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byEntry[entry]
}

func (f *flight) all() []*Delivery {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.byEntry))
}

func (f *flight) of(key string) []*Delivery {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.byKey[key]))
}
