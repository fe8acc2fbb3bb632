package cli

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/config"
)

// errForgotten means that nothing more will come of a change that was published.
var errForgotten = errors.New("the change is gone from Redis without a result: its data was lost, or it was settled and trimmed away")

// await waits for the result of the change with that entry. It outlasts a Redis that is gone for a
// while; beside ctx only the loss of the change ends it.
func await(ctx context.Context, client redis.UniversalClient, cfg config.Config, entry string) (events.Result, error) {
	tracker, err := app.NewTracker(client, cfg.Namespace())
	if err != nil {
		return events.Result{}, err
	}
	progress, err := tracker.Wait(ctx, entry)
	if err == nil && progress.State == stream.ChangeUnknown {
		err = errForgotten
	}
	return progress.Result, err
}

// timedOut reports whether the time of ctx is over. A connection that was given it may see that a moment before ctx does;
// and a network's own timeouts claim to be context.DeadlineExceeded too, so that errors do not tell.
func timedOut(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline) && !errors.Is(ctx.Err(), context.Canceled)
}
