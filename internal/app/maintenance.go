package app

import (
	"context"

	"lockstep/events"
	"lockstep/internal/volume"
	"lockstep/locking"
)

// GcMode is how a repository is tidied.
type GcMode struct {
	Operation string
	IfHeld    locking.Policy
	Full      bool
}

// Collect tidies one repository under its lease.
func Collect(ctx context.Context, vol *volume.Volume, locker *locking.Locker, repo events.RepoPath, mode GcMode) (result volume.GCResult, err error) {
	err = UnderLease(ctx, vol, locker, repo, mode.Operation, mode.IfHeld, func(ctx context.Context, fence uint64) error {
		result, err = vol.GC(ctx, volume.GCRequest{Repo: repo, Fence: fence, Full: mode.Full})
		return err
	})
	return result, err
}

// UnderLease runs fn while holding the repository. Without a locker nobody else may be at work: the fence
// then only follows the last one.
func UnderLease(ctx context.Context, vol *volume.Volume, locker *locking.Locker, repo events.RepoPath, operation string,
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
