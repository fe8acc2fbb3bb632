package stream

import (
	"maps"
	"slices"
	"sync"
)

// flight is what a subscription has in flight: every entry from the moment it is taken until Redis
// has been told what became of it. It is bounded by the window, and of one key by its share.
type flight struct {
	freed    chan struct{} // has a token when something may have left since last looked at
	keyLimit int

	mu        sync.Mutex
	count     int
	byEntry   map[string]*Delivery
	byKey     map[string]map[string]*Delivery
	overLimit map[string]bool // keys of which more was sent away, to come when there is room
}

func newFlight(keyLimit int) *flight {
	return &flight{
		freed:     make(chan struct{}, 1),
		keyLimit:  keyLimit,
		byEntry:   make(map[string]*Delivery),
		byKey:     make(map[string]map[string]*Delivery),
		overLimit: make(map[string]bool),
	}
}

// admits reports whether there is room for one more with this key. If not, roomy tells of it later on.
func (f *flight) hasCapacity(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if key == "" || len(f.byKey[key]) < f.keyLimit {
		return true
	}
	f.overLimit[key] = true
	return false
}

// enter takes d in. A delivery of the same entry that is there already is returned; it goes on
// counting until it leaves.
func (f *flight) enter(d *Delivery) (former *Delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	former = f.byEntry[d.entry]
	f.byEntry[d.entry] = d
	f.count++
	if d.key != "" {
		if f.byKey[d.key] == nil {
			f.byKey[d.key] = make(map[string]*Delivery)
		}
		f.byKey[d.key][d.entry] = d
	}
	return former
}

// leave lets d go, and reports whether that made room for others of its key that were sent away.
func (f *flight) leave(d *Delivery) (hasCapacity bool) {
	f.mu.Lock()
	f.count--
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

// room is how many more of a key may come. There is none until half of the share is free: one call to
// Redis for many, rather than one for each. The caller holds mu.
func (f *flight) capacity(key string) int {
	if n := len(f.byKey[key]); n <= f.keyLimit/2 {
		return f.keyLimit - n
	}
	return 0
}

// roomy returns the overLimit keys of which more may come now, with how many, and forgets that they
// were overLimit.
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

// crowd notes that there is more of a key than there was room for.
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

// find returns the delivery of an entry, nil without one.
func (f *flight) find(entry string) *Delivery {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byEntry[entry]
}

// all returns the latest delivery of each entry.
func (f *flight) all() []*Delivery {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.byEntry))
}

// of returns the latest delivery of each entry with that key.
func (f *flight) of(key string) []*Delivery {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.byKey[key]))
}
