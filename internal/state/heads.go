package state

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

const headScanCount = 1000 // approximately how many fields per repository [Store.ManyHeads] scans

// ManyHeads returns the published commit of each ref, for each of the repositories, in one round trip. The result is
// incomplete for repositories with very many refs or apps, and empty for invalid paths.
func (s *Store) ManyHeads(ctx context.Context, repos []string) ([]map[string]string, error) {
	replies := make([]*redis.ScanCmd, len(repos))
	_, _ = s.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, path := range repos {
			if repo, err := events.ParseRepoPath(path); err == nil {
				replies[i] = pipe.HScan(ctx, s.namespace.Repo(repo), 0, "head:*", headScanCount)
			}
		}
		return nil // each reply has its own error
	})
	all := make([]map[string]string, len(repos))
	for i, reply := range replies {
		all[i] = map[string]string{}
		if reply == nil {
			continue
		}
		fields, _, err := reply.Result()
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, fmt.Errorf("load the heads of %s: %w", repos[i], err)
		}
		for n := 0; n+1 < len(fields); n += 2 {
			all[i][strings.TrimPrefix(fields[n], "head:")] = fields[n+1]
		}
	}
	return all, nil
}

// ManyDefaults returns the ref last published under the plain name, for each of the repositories, in one
// round trip. It is empty if that is unknown, and for invalid paths.
func (s *Store) ManyDefaults(ctx context.Context, repos []string) ([]string, error) {
	replies := make([]*redis.StringCmd, len(repos))
	_, _ = s.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, path := range repos {
			if repo, err := events.ParseRepoPath(path); err == nil {
				replies[i] = pipe.HGet(ctx, s.namespace.Repo(repo), DefaultField)
			}
		}
		return nil // each reply has its own error
	})
	all := make([]string, len(repos))
	for i, reply := range replies {
		if reply == nil {
			continue
		}
		ref, err := reply.Result()
		if err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, fmt.Errorf("load the default branch of %s: %w", repos[i], err)
		}
		all[i] = ref
	}
	return all, nil
}
