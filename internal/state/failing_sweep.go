package state

import (
	"context"
	_ "embed" // the script
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
)

var (
	//go:embed failing.lua
	failingSource string
	failingScript = redis.NewScript(failingSource)
)

const sweepBatch = 200 // repositories that one step of a sweep reads

// SweepFailures removes failures older than age of apps that do not watch the repository, because nothing retries them. apps
// returns the apps that do. It returns the number of removed failures.
func (s *Store) SweepFailures(ctx context.Context, age time.Duration, apps func(context.Context, events.RepoPath) ([]string, error)) (swept int, err error) {
	now, err := stream.Time(ctx, s.redis, s.namespace.Failing())
	if err != nil {
		return 0, fmt.Errorf("sweep failures: %w", err)
	}
	before := now.Add(-age)
	for cursor := uint64(0); ; {
		found, next, err := s.redis.ZScan(ctx, s.namespace.Failing(), cursor, "", sweepBatch).Result()
		if err != nil {
			return swept, fmt.Errorf("sweep failures: %w", err)
		}
		var members []string
		for i := 0; i < len(found); i += 2 { // each is followed by its score
			members = append(members, found[i])
		}
		n, err := s.sweep(ctx, members, before, apps)
		swept += n
		if err != nil {
			return swept, fmt.Errorf("sweep failures: %w", err)
		}
		if cursor = next; cursor == 0 {
			return swept, nil
		}
	}
}

func (s *Store) sweep(ctx context.Context, members []string, before time.Time, apps func(context.Context, events.RepoPath) ([]string, error)) (swept int, err error) {
	values := make([]*redis.StringCmd, len(members))
	_, _ = s.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, member := range members {
			values[i] = pipe.HGet(ctx, string(s.namespace)+"repo:"+member, failingField)
		}
		return nil // each reply has its own error
	})
	for i, member := range members {
		value, err := values[i].Result()
		if redis.HasErrorPrefix(err, "WRONGTYPE") {
			continue
		}
		if err != nil && !errors.Is(err, redis.Nil) {
			return swept, err
		}
		names, err := sweepable(ctx, member, value, before, apps)
		if err != nil {
			return swept, err
		}
		if value != "" && len(names) == 0 {
			continue
		}
		n, err := s.removeFailures(ctx, member, before, names...)
		swept += n
		if err != nil {
			return swept, err
		}
	}
	return swept, nil
}

// sweepable returns the names of old notes about apps that do not watch a repository.
func sweepable(ctx context.Context, member, value string, before time.Time, apps func(context.Context, events.RepoPath) ([]string, error)) (names []string, err error) {
	old := map[string]failureNote{}
	for _, parsed := range stream.ParseNotes(value) {
		var n failureNote
		at, _ := strconv.ParseInt(parsed.AtMS, 10, 64)
		if json.Unmarshal([]byte(parsed.Text), &n) == nil && momentOf(at).Before(before) {
			old[parsed.Name] = n
		}
	}
	if len(old) == 0 {
		return nil, nil
	}
	repo, err := events.ParseRepoPath(member)
	if err != nil {
		return nil, nil
	}
	watching, err := apps(ctx, repo)
	if _, ok := errors.AsType[*events.Error](err); ok { // a watch cannot be decoded
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for name, n := range old {
		if name == pollNote && len(watching) > 0 || slices.Contains(watching, n.App) {
			continue
		}
		names = append(names, name)
	}
	return names, nil
}

// removeFailures removes the named notes that were added before a time by Redis' clock, and the repository from the index if it has none.
func (s *Store) removeFailures(ctx context.Context, member string, before time.Time, names ...string) (removed int, err error) {
	args := []any{failingField, member, before.UnixMilli()}
	for _, name := range names {
		args = append(args, name)
	}
	return failingScript.Run(ctx, s.redis, []string{string(s.namespace) + "repo:" + member, s.namespace.Failing()}, args...).Int()
}
