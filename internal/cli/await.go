package cli

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/changes"
	"lockstep/internal/config"
)

// errForgotten means that a published change can no longer get a result.
var errForgotten = errors.New("the change is gone from Redis without a result: Redis lost its data, or the change " +
	"was settled and trimmed")

// await waits for the result of the change in this stream entry, also in another cell to which it was
// forwarded. It survives Redis outages, and returns early only if ctx ends or the change is lost.
func await(ctx context.Context, client redis.UniversalClient, cfg config.Config, entry string) (events.Result, error) {
	progress, err := changes.NewTracker(client, cfg.Namespace()).Wait(ctx, entry)
	if err != nil || progress.State != changes.Unknown {
		return progress.Result, err
	}
	if cfg.Cell == "" {
		return events.Result{}, errForgotten
	}
	directory, err := cells.Open(ctx, client)
	if err != nil {
		return events.Result{}, err
	}
	cell, entry, ok, err := directory.ForwardedTo(ctx, cfg.Cell, entry)
	if err != nil {
		return events.Result{}, err
	}
	if !ok {
		return events.Result{}, errForgotten
	}
	return await(ctx, client, cfg.In(cell), entry)
}

// timedOut reports whether the deadline of ctx has passed. It does not inspect errors: a connection may see
// the deadline before ctx does, and network timeouts also claim to be context.DeadlineExceeded.
func timedOut(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline) && !errors.Is(ctx.Err(), context.Canceled)
}
