package follow

import (
	"context"
	"time"

	"lockstep/events"
)

const (
	purgePrefix = "purge "         // of the key of a purge in the position, which is of no ref
	purgeRetry  = 10 * time.Second // pause before a purge is tried again
)

// followPurge replaces the copy of a repository that was purged at the origin, once nothing pins it.
func (f *Follower) followPurge(ctx context.Context, repo events.RepoPath) {
	published, here, err := f.cfg.Volume.Published(repo)
	if err == nil && (!here || !f.isOurs(published)) {
		return
	}
	key, number := purgePrefix+repo.Key(), f.position.number
	f.position.ask(key)
	f.ask(ctx, func() func() {
		err := f.cfg.Purge(ctx, repo)
		for err != nil && ctx.Err() == nil {
			f.cfg.Log.WarnContext(ctx, "a purged repository is still here, will retry", "repo", repo.String(), "next", purgeRetry, "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(purgeRetry):
			}
			err = f.cfg.Purge(ctx, repo)
		}
		return func() {
			if err == nil {
				f.position.settled(key, number)
				f.compare(ctx, repo)
			}
		}
	})
}
