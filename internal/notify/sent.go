package notify

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
)

// AllSent reports whether nothing is left to post to apps of the results of a repository up to an entry: the
// notifiers have read it, and the outboxes of the repository are empty. Without apps, or if no notifier has
// ever run, nothing is.
func (o Outboxes) AllSent(ctx context.Context, repo events.RepoPath, apps []string, upto string) (bool, error) {
	if len(apps) == 0 {
		return true, nil
	}
	last, err := stream.GroupCursor(ctx, o.Redis, o.Namespace.Results(), Group)
	if err != nil || last == "" || events.EntryAfter(upto, last) {
		return err == nil && last == "", err
	}
	lengths := make([]*redis.IntCmd, len(apps))
	_, err = o.Redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, app := range apps {
			lengths[i] = pipe.LLen(ctx, o.key("box:"+app+" "+repo.Key()))
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("read the outboxes of %s: %w", repo, err)
	}
	return !slices.ContainsFunc(lengths, func(n *redis.IntCmd) bool { return n.Val() > 0 }), nil
}
