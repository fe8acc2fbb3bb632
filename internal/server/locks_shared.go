package server

import (
	"context"
	"sync/atomic"
	"time"

	"lockstep/locking"
)

// sharedLocks caches the list of locks. Listing scans every key in Redis and needs no authentication, so only one call
// lists at a time, and its result is cached long enough to keep listing below a twentieth of Redis' time.
type sharedLocks struct {
	Locks

	released atomic.Int64 // time of the last forced release, in ns since 1970

	turn    chan struct{} // semaphore of size 1; guards the fields below
	started time.Time     // start of the last listing
	expires time.Time     // of the cached list
	last    []locking.Status
}

// ShareLocks returns Locks with a cached List. A list may be cached for twenty times as long as it took to make, but
// never beyond the next ForceRelease. Other methods are not cached.
func ShareLocks(locks Locks) Locks {
	return &sharedLocks{Locks: locks, turn: make(chan struct{}, 1)}
}

const (
	listCacheFactor = 20
	listTimeout     = 10 * time.Second
)

func (s *sharedLocks) ForceRelease(ctx context.Context, key string, fence uint64) (locking.Holder, error) {
	defer func() { s.released.Store(time.Now().UnixNano()) }() // even after an error: the lease may have been released
	return s.Locks.ForceRelease(ctx, key, fence)
}

func (s *sharedLocks) List(ctx context.Context) ([]locking.Status, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.turn }()
	start := time.Now()
	if start.Before(s.expires) && s.started.UnixNano() >= s.released.Load() {
		return s.last, nil
	}
	// Other callers may be waiting for this list, so it does not end with the caller's context.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTimeout)
	defer cancel()
	list, err := s.Locks.List(ctx)
	if err != nil {
		return nil, err
	}
	s.last, s.started, s.expires = list, start, time.Now().Add(listCacheFactor*time.Since(start))
	return list, nil
}
