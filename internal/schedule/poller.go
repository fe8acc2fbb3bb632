package schedule

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

// Due queues polls that are due. [watch.Registry] implements it.
type Due interface {
	EnqueueDue(ctx context.Context, limit int, defaultInterval time.Duration) (n int, next time.Duration, err error)
}

// Poller queues polls that are due. Several pollers may share a registry.
type Poller struct {
	Due     Due
	Usual   time.Duration                          // interval of repositories whose watches set none
	Backlog func(ctx context.Context) (int, error) // number of changes waiting for a worker
	Observe func(polls int)                        // called with the number of polls queued; optional
	Log     *slog.Logger
}

// MaxBacklog is the [Backlog] above which pollers pause.
const MaxBacklog = 5000

// Backlog is how many changes wait for a worker, by the figures of the workers' group. Parked changes do not count: while
// one remote is unavailable, others must still be polled.
func Backlog(lag, late int64) int { return int(max(lag, 0) + late) }

const (
	pollsAtOnce = 100
	minSleep    = time.Second
	maxSleep    = 2 * time.Second // a watch with a shorter interval may be added meanwhile
	longPause   = 15 * time.Second
)

// Run queues polls until ctx is done. It retries while Redis is unreachable.
func (p Poller) Run(ctx context.Context) {
	late, failing := false, false
	for sleep := rand.N(minSleep); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(sleep):
		}
		queued, next, waiting, err := p.poll(ctx)
		if waiting > MaxBacklog {
			if !late {
				p.Log.WarnContext(ctx, "polls paused, workers are behind", "waiting", waiting)
			}
			late, sleep = true, longPause
			continue
		}
		late = false
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if !failing {
				p.Log.WarnContext(ctx, "polls cannot be queued, will retry", "error", err)
			}
			failing, sleep = true, longPause/2+rand.N(longPause/2)
			continue
		case failing:
			p.Log.InfoContext(ctx, "polls resumed")
			failing = false
		}
		if queued > 0 && p.Observe != nil {
			p.Observe(queued)
		}
		if sleep = min(max(next, minSleep), maxSleep); queued == pollsAtOnce {
			sleep = 0
		}
	}
}

// poll queues polls, unless too many changes wait for workers.
func (p Poller) poll(ctx context.Context) (queued int, next time.Duration, waiting int, err error) {
	waiting, err = p.Backlog(ctx)
	if err != nil {
		return 0, 0, 0, err
	}
	if waiting > MaxBacklog {
		return 0, 0, waiting, nil
	}
	queued, next, err = p.Due.EnqueueDue(ctx, pollsAtOnce, p.Usual)
	return queued, next, waiting, err
}
