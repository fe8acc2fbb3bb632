package follow

import (
	"context"
	"strings"
	"time"

	"lockstep/events"
)

// purge is a commit to delete from the copy of a repository.
type purge struct {
	check
	commit string
	number uint64 // of the frame that requests it
}

// purgeKey identifies a purge in the position. Unlike that of a ref, it does not start with a repository.
func purgeKey(repo events.RepoPath, commit string) string {
	return "purge " + repo.Key() + " " + commit
}

func isPurge(key string) bool { return strings.HasPrefix(key, "purge ") }

// followPurge requests the deletion of a commit that was purged at the origin.
func (f *Follower) followPurge(repo events.RepoPath, commit string) {
	key := purgeKey(repo, commit)
	f.position.ask(key)
	f.purges[key] = &purge{check{repo: repo}, commit, f.position.number}
}

// purgeDue deletes purged commits. A copy that is still published at such a commit must first sync the replacement.
func (f *Follower) purgeDue(ctx context.Context) {
	now := time.Now()
	for key, p := range f.purges {
		if now.Before(p.at) || ctx.Err() != nil {
			continue
		}
		published, _, err := f.cfg.Volume.Published(p.repo)
		done := err == nil && !f.isOurs(published)
		if err == nil && !done {
			done, err = f.cfg.Purge(ctx, p.repo, p.commit)
		}
		if done {
			f.position.settled(key, p.number)
			delete(f.purges, key)
			continue
		}
		p.later()
		if ctx.Err() == nil {
			f.cfg.Log.WarnContext(ctx, "a purged commit is still here, will retry", "repo", p.repo.String(), "commit", p.commit, "next", time.Until(p.at).Round(time.Second), "error", err)
		}
	}
}
