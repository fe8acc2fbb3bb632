package state

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

const headScanCount = 1000 // approximately how many fields per repository [Store.LoadHeads] scans

// LoadHeads returns the part of the state of each of the repositories that says what is published, [Repo.Heads] and
// [Repo.Default], in one round trip. The heads of repositories with very many refs or apps are incomplete; invalid
// paths have no state.
func (s *Store) LoadHeads(ctx context.Context, repos []string) ([]Repo, error) {
	heads, defaults := make([]*redis.ScanCmd, len(repos)), make([]*redis.StringCmd, len(repos))
	_, _ = s.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, path := range repos {
			if repo, err := events.ParseRepoPath(path); err == nil {
				heads[i] = pipe.HScan(ctx, s.namespace.Repo(repo), 0, "head:*", headScanCount)
				defaults[i] = pipe.HGet(ctx, s.namespace.Repo(repo), DefaultField)
			}
		}
		return nil // each reply has its own error
	})
	all := make([]Repo, len(repos))
	for i, reply := range heads {
		all[i] = RepoOf(map[string]string{})
		if reply == nil {
			continue
		}
		fields, _, err := reply.Result()
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, fmt.Errorf("load the heads of %s: %w", repos[i], err)
		}
		for n := 0; n+1 < len(fields); n += 2 {
			all[i].fields[fields[n]] = fields[n+1]
		}
		if ref := defaults[i].Val(); ref != "" {
			all[i].fields[DefaultField] = ref
		}
	}
	return all, nil
}
