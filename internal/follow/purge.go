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

// followPurge replaces the copy of a repository that was purged at the origin, unless it was removed or moved
// meanwhile.
func (f *Follower) followPurge(ctx context.Context, repo events.RepoPath) {
	key, number := purgePrefix+repo.Key(), f.position.number
	f.position.ask(key)
	f.ask(ctx, func() func() {
		for {
			err := f.purge(ctx, repo)
			if err == nil {
				break
			}
			f.cfg.Log.WarnContext(ctx, "purge failed, will retry", "repo", repo.String(), "next", purgeRetry, "error", err)
			select {
			case <-ctx.Done():
				return func() {}
			case <-time.After(purgeRetry):
			}
		}
		return func() {
			f.position.settled(key, number)
			f.compare(ctx, repo)
		}
	})
}

func (f *Follower) purge(ctx context.Context, repo events.RepoPath) error {
	published, here, err := f.cfg.Volume.Published(repo)
	if err != nil {
		return err
	}
	if !here || !f.isOurs(published) {
		return nil
	}
	return f.cfg.Purge(ctx, repo)
}
