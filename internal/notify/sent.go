package notify

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// AllSent reports whether nothing is left to post to apps of the results of a repository up to an entry: the
// notifiers have read it, and the outboxes of the repository are empty. Without apps, or if no notifier has
// ever run, nothing is.
func (o Outboxes) AllSent(ctx context.Context, repo events.RepoPath, apps []string, upto string) (bool, error) {
	if len(apps) == 0 {
		return true, nil
	}
	groups, err := o.Redis.XInfoGroups(ctx, o.Namespace.Results()).Result()
	if err != nil && !redis.HasErrorPrefix(err, "no such key") && !redis.HasErrorPrefix(err, "ERR no such key") {
		return false, fmt.Errorf("read the groups of %s: %w", o.Namespace.Results(), err)
	}
	at := slices.IndexFunc(groups, func(g redis.XInfoGroup) bool { return g.Name == Group })
	if at < 0 {
		return true, nil
	}
	if events.EntryAfter(upto, groups[at].LastDeliveredID) {
		return false, nil
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
