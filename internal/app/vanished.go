package app

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redisx"
	"lockstep/internal/watch"
)

const (
	pollPause  = 20 * time.Millisecond // between polls for vanished changes, which leaves room for others
	roundPause = 10 * time.Second      // between rounds of such polls, and before failed ones are repeated
)

// vanished polls the repositories of changes that have vanished from the stream: all watched ones if it does not know which.
type vanished struct {
	cfg    Config
	redis  redis.UniversalClient
	source string        // of the polls
	most   int64         // length of the stream above which polls wait: they could make it drop more
	wake   chan struct{} // has a token after a report

	mu   sync.Mutex
	all  bool
	keys map[string]bool
}

func newVanished(cfg Config, client redis.UniversalClient) *vanished {
	return &vanished{
		cfg: cfg, redis: client, source: "/lockstep/worker/" + cfg.Worker, most: changesCap / 2, wake: make(chan struct{}, 1),
		keys: map[string]bool{},
	}
}

// report is called by the subscriber, see [stream.SubscriberConfig].
func (v *vanished) report(n int64, keys []string) {
	v.cfg.Metrics.Vanished(n)
	v.add(n == 0 || int64(len(keys)) < n, keys...)
}

func (v *vanished) add(all bool, keys ...string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = v.all || all
	for _, key := range keys {
		v.keys[key] = true
	}
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// run queues the polls until ctx is done.
func (v *vanished) run(ctx context.Context) {
	for {
		select {
		case <-v.wake:
		case <-ctx.Done():
			return
		}
		v.round(ctx)
		if !redisx.Pause(ctx, roundPause) {
			return
		}
	}
}

func (v *vanished) round(ctx context.Context) {
	waiting, err := v.redis.XLen(ctx, v.cfg.Namespace().Changes()).Result()
	if err != nil || waiting > v.most {
		v.add(false) // look again
		return
	}
	v.mu.Lock()
	all, keys := v.all, slices.Collect(maps.Keys(v.keys))
	v.all, v.keys = false, map[string]bool{}
	v.mu.Unlock()
	repos := func(yield func(events.RepoPath, error) bool) {
		for _, key := range keys {
			if !yield(events.ParseRepoPath(key)) {
				return
			}
		}
	}
	if all {
		repos = watch.NewRegistry(v.redis, v.cfg.Namespace()).Repos(ctx)
	}
	polled := 0
	for repo, err := range repos {
		if err == nil {
			err = v.poll(ctx, repo)
		}
		switch {
		case ctx.Err() != nil:
			return
		case redisx.Unavailable(err):
			v.cfg.Log.WarnContext(ctx, "repositories of vanished changes not polled, will retry", "error", err)
			v.add(all, keys...)
			return
		case err != nil:
			v.cfg.Log.ErrorContext(ctx, "repository of a vanished change not polled; run lockstep reconcile",
				"repo", repo.String(), "error", err)
			continue
		}
		polled++
		if !redisx.Pause(ctx, pollPause) {
			return
		}
	}
	v.cfg.Log.WarnContext(ctx, "polls queued because changes vanished; they do nothing for a repository without watches",
		"repos", polled, "all", all)
}

func (v *vanished) poll(ctx context.Context, repo events.RepoPath) error {
	due, err := events.NewChange(events.Change{Type: events.ChangeDue, Repo: repo, Source: v.source})
	if err != nil {
		return err
	}
	return PublishChange(ctx, v.redis, v.cfg.Namespace(), due)
}
