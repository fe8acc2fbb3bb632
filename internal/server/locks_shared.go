package server

import (
	"context"
	"time"

	"lockstep/locking"
)

// sharedLocks lists locks for many who look. A list takes a look at every key in Redis, and anybody may ask for
// it: one is made at a time, and is good for as long as keeps that from taking more than a twentieth of Redis.
type sharedLocks struct {
	Locks

	turn  chan struct{} // full while somebody lists; guards what follows
	until time.Time     // when what follows is stale
	last  []locking.Status
}

// ShareLocks makes locks for many who look: what List returns may be twenty times as old as a list takes. The
// others ask anew.
func ShareLocks(locks Locks) Locks {
	return &sharedLocks{Locks: locks, turn: make(chan struct{}, 1)}
}

const (
	listShare = 20
	listTime  = 10 * time.Second
)

func (s *sharedLocks) List(ctx context.Context) ([]locking.Status, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.turn }()
	began := time.Now()
	if began.Before(s.until) {
		return s.last, nil
	}
	// Others may be waiting for what this caller asks for: it is not to be cancelled with the caller.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTime)
	defer cancel()
	list, err := s.Locks.List(ctx)
	if err != nil {
		return nil, err
	}
	s.last, s.until = list, time.Now().Add(listShare*time.Since(began))
	return list, nil
}
