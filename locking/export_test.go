package locking

import (
	"context"
	"maps"
	"slices"
)

// The scripts' hashes, for tests that count or disturb calls.
var (
	AcquireHash = acquireScript.Hash()
	ReleaseHash = releaseScript.Hash()
	RenewHash   = renewScript.Hash()
	ReclaimHash = reclaimScript.Hash()
)

// RenewAll renews every held lease.
func RenewAll(ctx context.Context, l *Locker) error {
	l.mu.Lock()
	leases := slices.Collect(maps.Values(l.leases))
	l.mu.Unlock()
	return l.renew(ctx, leases)
}
