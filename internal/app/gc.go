package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redisx"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/locking"
)

// gc collects the garbage of repositories that no sync touches: it drops replaced trees after their grace
// period, removes leftovers of crashed workers and measures every repository. One worker of a deployment does
// so at a time, one repository after another, each under its lease. It skips repositories whose lease is
// held. Then it forgets repositories that are gone.
type gc struct {
	volume    *volume.Volume
	states    *state.Store
	locker    *locking.Locker
	redis     redis.UniversalClient
	namespace events.Namespace
	worker    string // that claims the turn, with the key of the namespace
	interval  time.Duration
	safe      time.Duration // after which a repository is gone
	log       *slog.Logger
	freed     func(bytes int64)
}

// gcInterval returns the interval between garbage collections, for a grace period of replaced trees.
func gcInterval(grace time.Duration) time.Duration {
	return min(max(2*grace, 2*time.Second), time.Hour)
}

// gcTotals are the totals of one run.
type gcTotals struct {
	volume.Total
	freed                 int64
	dropped, busy, failed int
}

// Run collects garbage until ctx is done.
func (g gc) Run(ctx context.Context) {
	runEvery(ctx, g.interval, func() {
		if claimed, err := g.redis.SetNX(ctx, g.namespace.GC(), g.worker, turn(g.interval)).Result(); err == nil && claimed {
			g.runOnce(ctx)
		}
	})
}

func (g gc) runOnce(ctx context.Context) {
	began, renewed := time.Now(), time.Now()
	if err := g.volume.SweepLeftovers(); err != nil {
		g.log.WarnContext(ctx, "cannot sweep the volume", "error", err)
	}
	var totals gcTotals
	for repo, err := range g.volume.Repos() {
		if err == nil {
			err = g.visit(ctx, repo, &totals)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, locking.ErrUnavailable), redisx.Unavailable(err):
			g.log.DebugContext(ctx, "garbage collection stopped early, redis is unavailable", "error", err)
			return
		case err != nil:
			totals.failed++
			g.log.WarnContext(ctx, "garbage collection failed for a repository", "repo", repo, "error", err)
		}
		if time.Since(renewed) > g.interval/4 {
			renewed = time.Now()
			_ = g.redis.SetXX(ctx, g.namespace.GC(), g.worker, turn(g.interval)).Err()
		}
	}
	totals.Collected = time.Now()
	if err := g.volume.SetTotal(totals.Total); err != nil {
		g.log.WarnContext(ctx, "cannot record the volume's totals", "error", err)
	}
	g.freed(totals.freed)
	forgotten, err := g.forgetGone(ctx)
	if err != nil {
		g.log.DebugContext(ctx, "repositories that are gone not all forgotten", "error", err)
	}
	level := slog.LevelDebug
	if totals.freed > 0 || totals.dropped > 0 || forgotten > 0 {
		level = slog.LevelInfo
	}
	g.log.Log(ctx, level, "garbage collected", "repositories", totals.Repos, "bytes", totals.Bytes, "freed", totals.freed,
		"trees_dropped", totals.dropped, "busy", totals.busy, "failed", totals.failed,
		"forgotten", forgotten, "took", time.Since(began))
}

// visit collects one repository. It takes no lease and writes nothing if the repository is tidy, as most are.
func (g gc) visit(ctx context.Context, repo events.RepoPath, totals *gcTotals) error {
	if g.volume.IsTidy(repo) {
		totals.Add(g.volume.Usage(repo))
		return nil
	}
	result, err := Collect(ctx, g.volume, g.locker, repo, CollectOptions{IfHeld: locking.Skip})
	if err != nil {
		totals.Add(g.volume.Usage(repo))
		if errors.Is(err, locking.ErrHeld) {
			totals.busy++
			return nil
		}
		return err
	}
	totals.Add(result.Usage)
	totals.freed += result.Freed
	totals.dropped += result.Trees
	return nil
}
