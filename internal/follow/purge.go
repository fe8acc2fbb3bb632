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

// purgeDue deletes purged commits. A copy that is still published at such a commit must first sync the replacement. A purge reads
// the whole repository, so it runs beside the stream, one at a time.
func (f *Follower) purgeDue(ctx context.Context) {
	now := time.Now()
	for key, p := range f.purges {
		if f.purging || ctx.Err() != nil {
			return
		}
		if now.Before(p.at) {
			continue
		}
		f.purging = true
		repo, commit := p.repo, p.commit
		f.ask(ctx, func() func() {
			done, err := f.purge(ctx, repo, commit)
			return func() {
				f.purging = false
				f.notePurge(ctx, key, p, done, err)
			}
		})
	}
}

// purge deletes a commit from a copy.
func (f *Follower) purge(ctx context.Context, repo events.RepoPath, commit string) (done bool, err error) {
	published, _, err := f.cfg.Volume.Published(repo)
	if err != nil || !f.isOurs(published) {
		return err == nil, err
	}
	return f.cfg.Purge(ctx, repo, commit)
}

// notePurge takes note of what has become of a purge. If the reader has announced it again meanwhile, it runs again.
func (f *Follower) notePurge(ctx context.Context, key string, p *purge, done bool, err error) {
	switch {
	case f.purges[key] != p:
	case done:
		f.position.settled(key, p.number)
		delete(f.purges, key)
	default:
		p.later()
		if ctx.Err() == nil {
			f.cfg.Log.WarnContext(ctx, "a purged commit is still here, will retry", "repo", p.repo.String(), "commit", p.commit, "next", time.Until(p.at).Round(time.Second), "error", err)
		}
	}
}
