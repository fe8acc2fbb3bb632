package stream

import (
	"maps"
	"slices"
	"sync"
)

// flight tracks the deliveries in flight, from the moment an entry is taken until its end is written to Redis.
// It counts them and their bytes, and admits one per key, the key's head, and those that may be beside it.
type flight struct {
	freed chan struct{} // has a token if a delivery may have left since the last receive

	mu      sync.Mutex
	count   int
	held    int64 // bytes
	byEntry map[string]*Delivery
	byKey   map[string]*Delivery // the heads
	parked  map[string]bool      // keys that may have parked entries
}

func newFlight() *flight {
	return &flight{
		freed: make(chan struct{}, 1), byEntry: make(map[string]*Delivery),
		byKey: make(map[string]*Delivery), parked: make(map[string]bool),
	}
}

// enter adds d, unless its key has a head, or d is new and entries of its key are parked, which go first. A
// delivery that may be beside others is added in any case, but not as the head. A previous delivery of the
// same entry still counts until it leaves.
func (f *flight) enter(d *Delivery, isNew bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch isBusy := f.byKey[d.key] != nil || isNew && f.parked[d.key]; {
	case d.key == "", isBusy && d.beside:
	case isBusy:
		f.parked[d.key] = true
		return false
	default:
		f.byKey[d.key] = d
	}
	f.byEntry[d.entry] = d
	f.count++
	f.held += d.bytes
	return true
}

// leave removes d, and reports whether entries of its key may be parked.
func (f *flight) leave(d *Delivery) (parked bool) {
	f.mu.Lock()
	f.count--
	f.held -= d.bytes
	if f.byEntry[d.entry] == d {
		delete(f.byEntry, d.entry)
	}
	if f.byKey[d.key] == d {
		delete(f.byKey, d.key)
	}
	parked = f.parked[d.key]
	f.mu.Unlock()
	select {
	case f.freed <- struct{}{}:
	default:
	}
	return parked
}

// freeKeys returns the keys with parked entries and no delivery in flight, and unmarks them.
func (f *flight) freeKeys() (keys []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.parked {
		if f.byKey[key] == nil {
			keys = append(keys, key)
			delete(f.parked, key)
		}
	}
	return keys
}

// canUnpark reports whether freeKeys would return a key.
func (f *flight) canUnpark() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.parked {
		if f.byKey[key] == nil {
			return true
		}
	}
	return false
}

// markParked records that entries of the keys may be parked.
func (f *flight) markParked(keys ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range keys {
		f.parked[key] = true
	}
}

// load returns how many deliveries are in flight, and their bytes.
func (f *flight) load() (count int, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count, f.held
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
