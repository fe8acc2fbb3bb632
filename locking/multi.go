package locking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Leases are leases acquired together by AcquireAll.
type Leases []*Lease

// AcquireAll acquires all keys or none, and returns the leases in the order of the requests. It acquires keys in byte
// order, so that two calls cannot deadlock. The longest Wait of the requests is the timeout of the whole call.
//
// It returns the errors of Acquire, and an error if a key occurs twice, because leases are not reentrant.
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
			return nil, fmt.Errorf("locking: AcquireAll got key %q twice", key)
		}
	}

	leases := make(Leases, len(reqs))
	deadline := time.Now().Add(wait)
	for _, i := range order {
		req := reqs[i]
		req.Wait = max(time.Until(deadline), time.Millisecond)
		lease, err := l.Acquire(ctx, req)
		if err != nil {
			_ = leases.Release(ctx) // otherwise they expire
			return nil, err
		}
		leases[i] = lease
		ctx = lease.Context() // losing this lease cancels the following ones
	}
	return leases, nil
}

// Context returns a context that is cancelled with cause ErrLost when any of the leases is lost.
func (ls Leases) Context() context.Context {
	// The lease of the highest key was acquired last, so its context derives from all others.
	return slices.MaxFunc(ls, func(a, b *Lease) int { return cmp.Compare(a.Key(), b.Key()) }).Context()
}

// Confirm calls Lease.Confirm for every lease.
func (ls Leases) Confirm(ctx context.Context) error {
	for _, lease := range ls {
		if err := lease.Confirm(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Release releases all leases, in reverse order of acquisition.
func (ls Leases) Release(ctx context.Context) error {
	held := slices.DeleteFunc(slices.Clone(ls), func(lease *Lease) bool { return lease == nil })
	slices.SortFunc(held, func(a, b *Lease) int { return cmp.Compare(b.Key(), a.Key()) })
	var errs []error
	for _, lease := range held {
		errs = append(errs, lease.Release(ctx))
	}
	return errors.Join(errs...)
}
