package locking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Leases are leases that were acquired together.
type Leases []*Lease

// AcquireAll acquires several keys, or none: the lease of each request, in the order of the requests.
// Everybody takes keys in the same order, that of their bytes, so no two can wait for each other. The
// longest Wait among the requests, counted from the call, bounds the wait for all of them together.
//
// It fails as Acquire does; a key that is asked for twice is an error too, since a lease is not
// reentrant.
func (l *Locker) AcquireAll(ctx context.Context, reqs ...Request) (Leases, error) {
	if len(reqs) == 0 {
		return nil, errors.New("locking: AcquireAll without a request")
	}
	order := make([]int, len(reqs))
	wait := time.Duration(0)
	for i, req := range reqs {
		order[i] = i
		wait = max(wait, cmp.Or(req.Wait, l.cfg.Wait))
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(reqs[a].Key, reqs[b].Key) })
	for i := 1; i < len(order); i++ {
		if key := reqs[order[i]].Key; key == reqs[order[i-1]].Key {
			return nil, fmt.Errorf("locking: AcquireAll is asked for %q twice", key)
		}
	}

	leases := make(Leases, len(reqs))
	deadline := time.Now().Add(wait)
	for _, i := range order {
		req := reqs[i]
		req.Wait = max(time.Until(deadline), time.Millisecond)
		lease, err := l.Acquire(ctx, req)
		if err != nil {
			_ = leases.Release(ctx) // what cannot be given back lapses
			return nil, err
		}
		leases[i] = lease
		ctx = lease.Context() // the next one ends with this one
	}
	return leases, nil
}

// Context is cancelled, with cause ErrLost, when any of the leases is lost.
func (ls Leases) Context() context.Context {
	// The last one acquired, that of the highest key, derives from all others.
	return slices.MaxFunc(ls, func(a, b *Lease) int { return cmp.Compare(a.Key(), b.Key()) }).Context()
}

// Confirm asks for every lease whether it is held, as Lease.Confirm does.
func (ls Leases) Confirm(ctx context.Context) error {
	for _, lease := range ls {
		if err := lease.Confirm(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Release gives all leases back, the last one acquired first.
func (ls Leases) Release(ctx context.Context) error {
	held := slices.DeleteFunc(slices.Clone(ls), func(lease *Lease) bool { return lease == nil })
	slices.SortFunc(held, func(a, b *Lease) int { return cmp.Compare(b.Key(), a.Key()) })
	var errs []error
	for _, lease := range held {
		errs = append(errs, lease.Release(ctx))
	}
	return errors.Join(errs...)
}
