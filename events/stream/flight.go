package stream

import "sync"

// flight is what a subscription has in flight: every entry from the moment it is taken until Redis
// has been told what became of it. It is bounded by the window.
type flight struct {
	freed chan struct{} // has a token when something may have left since last looked at

	mu      sync.Mutex
	count   int
	byEntry map[string]*Delivery
}

func newFlight() *flight {
	return &flight{freed: make(chan struct{}, 1), byEntry: make(map[string]*Delivery)}
}

// enter takes d in. A delivery of the same entry that is there already is returned; it goes on
// counting until it leaves.
func (f *flight) enter(d *Delivery) (former *Delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	former = f.byEntry[d.entry]
	f.byEntry[d.entry] = d
	f.count++
	return former
}

// leave lets d go.
func (f *flight) leave(d *Delivery) {
	f.mu.Lock()
	if f.byEntry[d.entry] == d {
		delete(f.byEntry, d.entry)
	}
	f.count--
	f.mu.Unlock()
	select {
	case f.freed <- struct{}{}:
	default:
	}
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
	ds := make([]*Delivery, 0, len(f.byEntry))
	for _, d := range f.byEntry {
		ds = append(ds, d)
	}
	return ds
}
