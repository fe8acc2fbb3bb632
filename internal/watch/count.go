package watch

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
)

// Count returns the number of watched repositories, in constant time.
func (r *Registry) Count(ctx context.Context) (int64, error) {
	n, err := r.redis.ZCard(ctx, r.index()).Result()
	if err != nil {
		return 0, fmt.Errorf("count watched repositories: %w", err)
	}
	return n, nil
}

// AreWatched reports for each repository whether it is watched.
func (r *Registry) AreWatched(ctx context.Context, repos []events.RepoPath) ([]bool, error) {
	replies := make([]*redis.FloatCmd, len(repos))
	_, _ = r.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, repo := range repos {
			replies[i] = pipe.ZScore(ctx, r.index(), repo.Key())
		}
		return nil // each reply has its own error
	})
	watched := make([]bool, len(repos))
	for i, reply := range replies {
		switch err := reply.Err(); {
		case err == nil:
			watched[i] = true
		case !errors.Is(err, redis.Nil):
			return nil, fmt.Errorf("find the watched repositories: %w", err)
		}
	}
	return watched, nil
}
