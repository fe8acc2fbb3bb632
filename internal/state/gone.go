package state

import (
	"context"
	_ "embed" // the script
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/locking"
)

//go:embed forget.lua
var forgetSource string

var forgetScript = redis.NewScript(forgetSource)

// Unused reports whether no watch names repo, it is in this cell, and no lease on it was held since a time of Redis'
// clock. floor is its fence on the volume: a fence is the time in µs of its grant or, rarely, later. Unused returns
// false without any fence, as of a restored state.
func (s *Store) Unused(ctx context.Context, repo events.RepoPath, floor uint64, since time.Time) (bool, error) {
	pipe := s.redis.Pipeline()
	lock := pipe.HMGet(ctx, s.namespace.Locks()+repo.Key(), "fence", "expires")
	known := pipe.HMGet(ctx, s.namespace.Repo(repo), "fence", cellField)
	watched := pipe.Exists(ctx, s.watchesOf(repo.Key()))
	if _, err := pipe.Exec(ctx); err != nil {
		return false, fmt.Errorf("see when %s was last used: %w", repo, err)
	}
	if watched.Val() > 0 || known.Val()[1] != nil {
		return false, nil
	}
	for _, value := range append(lock.Val(), known.Val()[0]) {
		text, _ := value.(string)
		micros, _ := strconv.ParseUint(text, 10, 64)
		floor = max(floor, micros)
	}
	return floor > 0 && time.UnixMicro(int64(floor)).Before(since), nil
}

// watchesOf returns the key of a repository's watches, which package watch writes.
func (s *Store) watchesOf(key string) string { return s.namespace.Watches() + "of:" + key }

// Forget deletes the keys of a repository, and its lock. It does nothing if that is not held by the lease, if somebody
// waits for it, or if the repository is watched or in another cell.
func (s *Store) Forget(ctx context.Context, repo events.RepoPath, lease locking.Guard) (forgotten bool, err error) {
	keys := []string{lease.Key, lease.Queue, s.watchesOf(repo.Key()), s.namespace.Repo(repo),
		s.namespace.Views(repo), s.namespace.Failing()}
	n, err := forgetScript.Run(ctx, s.redis, keys, lease.Owner, strconv.FormatUint(lease.Fence, 10), repo.Key()).Int()
	if err != nil {
		return false, fmt.Errorf("forget %s: %w", repo, err)
	}
	return n == 1, nil
}
