package cli

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/state"
	"lockstep/internal/status"
	"lockstep/internal/term"
)

const progressEvery = 10 * time.Second // shorter syncs print nothing

// showProgress prints the progress of a change on standard error every 10 s. Call stop before printing anything else.
func showProgress(
	std term.Streams, client redis.UniversalClient, cfg config.Config, change events.Change,
) (stop func()) {
	states := state.NewStore(client, cfg.Namespace())
	began := time.Now()
	return every(progressEvery, func(ctx context.Context) {
		if all, err := states.Activities(ctx); err == nil { // otherwise the result reports the problem
			fmt.Fprintf(std.Stderr, "%s after %v: %s\n", change.Repo, time.Since(began).Round(time.Second),
				progressText(all, change))
		}
	})
}

// every calls fn in intervals until stop, which waits for it. The context of fn ends then.
func every(interval time.Duration, fn func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				fn(ctx)
			}
		}
	})
	return func() { cancel(); ended.Wait() }
}

// progressText returns the progress of a change or, if it is not running, of another change of its repository.
func progressText(all []state.Activity, change events.Change) string {
	var found events.Progress
	for _, activity := range all {
		repo, err := events.ParseRepoPath(activity.Repo)
		if activity.Job == change.ID || found.Phase == "" && err == nil && repo.Equal(change.Repo) {
			found = activity.Progress
		}
	}
	if found.Phase == "" {
		return "waits for a worker; see lockstep status"
	}
	return term.Clean(status.Progress(found))
}
