package main

import (
	"context"

	"lockstep/events"
	"lockstep/internal/gitrepo"
	"lockstep/locking"
)

// gcMode is how a repository is tidied.
type gcMode struct {
	operation string
	ifHeld    locking.Policy
	full      bool
}

// collect tidies one repository under its lease.
func collect(ctx context.Context, volume *gitrepo.Volume, locker *locking.Locker, repo events.RepoPath, mode gcMode) (result gitrepo.GCResult, err error) {
	err = underLease(ctx, volume, locker, repo, mode.operation, mode.ifHeld, func(ctx context.Context, fence uint64) error {
		result, err = volume.GC(ctx, gitrepo.GCRequest{Repo: repo, Fence: fence, Full: mode.full})
		return err
	})
	return result, err
}

// underLease runs fn while holding the repository. Without a locker nobody else may be at work: the fence
// then only follows the last one.
func underLease(ctx context.Context, volume *gitrepo.Volume, locker *locking.Locker, repo events.RepoPath, operation string,
	ifHeld locking.Policy, fn func(ctx context.Context, fence uint64) error) error {
	floor, err := volume.Floor(repo)
	if err != nil {
		return err
	}
	if locker == nil {
		return fn(ctx, floor+1)
	}
	request := locking.Request{Key: repo.Key(), Job: operation, Operation: operation, IfHeld: ifHeld, Floor: floor}
	return locker.Do(ctx, request, func(ctx context.Context, lease *locking.Lease) error { return fn(ctx, lease.Fence()) })
}
