package app

import (
	"context"

	"lockstep/events"
	"lockstep/internal/volume"
	"lockstep/locking"
)

// CollectOptions configures [Collect].
type CollectOptions struct {
	IfHeld locking.Policy
	Full   bool // see [volume.GCRequest]
}

// Collect garbage-collects and measures one repository under its lease. locker may be nil, see [WithLease].
func Collect(
	ctx context.Context, vol *volume.Volume, locker *locking.Locker, repo events.RepoPath, opts CollectOptions,
) (result volume.GCResult, err error) {
	err = WithLease(ctx, vol, locker, repo, "gc", opts.IfHeld, func(ctx context.Context, fence uint64) error {
		result, err = vol.GC(ctx, volume.GCRequest{Repo: repo, Fence: fence, Full: opts.Full})
		return err
	})
	return result, err
}

// WithLease runs fn while holding the lease of a repository. With a nil locker it acquires no lease and uses
// the next fence; then no worker may be running.
func WithLease(ctx context.Context, vol *volume.Volume, locker *locking.Locker, repo events.RepoPath, operation string,
	ifHeld locking.Policy, fn func(ctx context.Context, fence uint64) error) error {
	floor, err := vol.Floor(repo)
	if err != nil {
		return err
	}
	if locker == nil {
		return fn(ctx, floor+1)
	}
	request := locking.Request{Key: repo.Key(), Job: operation, Operation: operation, IfHeld: ifHeld, Floor: floor}
	return locker.Do(ctx, request, func(ctx context.Context, lease *locking.Lease) error { return fn(ctx, lease.Fence()) })
}
