package schedule

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

// Due are the polls that are due; a [watch.Registry] has them.
type Due interface {
	EnqueueDue(ctx context.Context, limit int, usual time.Duration) (taken int, next time.Duration, err error)
}

// Poller has due polls asked for. Several may be at it.
type Poller struct {
	Due     Due
	Usual   time.Duration                          // between two polls of a repository whose watches leave it open
	Backlog func(ctx context.Context) (int, error) // changes that wait for a worker
	Observe func(polls int)                        // is told of polls asked for; nil: nobody
	Log     *slog.Logger
}

const (
	pollsAtOnce = 100
	maxBacklog  = 5000
	minSleep    = time.Second
	maxSleep    = 15 * time.Second // a watch may come that is polled sooner
)

// Run polls until ctx is done. While Redis is away it goes on trying.
func (p Poller) Run(ctx context.Context) {
	late, failing := false, false
	for sleep := rand.N(minSleep); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(sleep):
		}
		waiting, err := p.Backlog(ctx)
		if err == nil && waiting > maxBacklog {
			if !late {
				p.Log.WarnContext(ctx, "polls are put off: workers are behind", "waiting", waiting)
			}
			late, sleep = true, maxSleep
			continue
		}
		late = false
		var taken int
		var next time.Duration
		if err == nil {
			taken, next, err = p.Due.EnqueueDue(ctx, pollsAtOnce, p.Usual)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if !failing {
				p.Log.WarnContext(ctx, "nothing is polled for now: it cannot be told what is due", "error", err)
			}
			failing, sleep = true, maxSleep/2+rand.N(maxSleep/2)
			continue
		case failing:
			p.Log.InfoContext(ctx, "polls go on")
			failing = false
		}
		if taken > 0 && p.Observe != nil {
			p.Observe(taken)
		}
		if sleep = min(max(next, minSleep), maxSleep); taken == pollsAtOnce {
			sleep = 0
		}
	}
}
