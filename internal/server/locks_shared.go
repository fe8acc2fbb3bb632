package server

import (
	"context"
	"sync/atomic"
	"time"

	"lockstep/locking"
)

// sharedLocks lists locks for many who look. A list takes a look at every key in Redis, and anybody may ask for
// it: one is made at a time, and is good for as long as keeps that from taking more than a twentieth of Redis.
type sharedLocks struct {
	Locks

	taken atomic.Int64 // when a lease was taken away last, in ns since 1970

	turn  chan struct{} // full while somebody lists; guards what follows
	began time.Time     // when the last list was
	until time.Time     // when it is stale
	last  []locking.Status
}

// ShareLocks makes locks for many who look: what List returns may be twenty times as old as a list takes, but not older
// than the last ForceRelease. The others ask anew.
func ShareLocks(locks Locks) Locks {
	return &sharedLocks{Locks: locks, turn: make(chan struct{}, 1)}
}

const (
	listShare = 20
	listTime  = 10 * time.Second
)

func (s *sharedLocks) ForceRelease(ctx context.Context, key string, fence uint64) (locking.Holder, error) {
	defer func() { s.taken.Store(time.Now().UnixNano()) }() // after an error, too: the lease may be gone
	return s.Locks.ForceRelease(ctx, key, fence)
}

func (s *sharedLocks) List(ctx context.Context) ([]locking.Status, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.turn }()
	began := time.Now()
	if began.Before(s.until) && s.began.UnixNano() >= s.taken.Load() {
		return s.last, nil
	}
	// Others may be waiting for what this caller asks for: it is not to be cancelled with the caller.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTime)
	defer cancel()
	list, err := s.Locks.List(ctx)
	if err != nil {
		return nil, err
	}
	s.last, s.began, s.until = list, began, time.Now().Add(listShare*time.Since(began))
	return list, nil
}
