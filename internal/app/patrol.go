package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redisx"
	"lockstep/internal/telemetry"
	"lockstep/internal/volume"
	"lockstep/locking"
)

// patrol maintains repositories that no sync touches: it drops replaced trees after their grace period, removes leftovers of
// crashed workers and measures every repository. One worker of a deployment patrols at a time, one repository after another,
// each under its lease. It skips repositories whose lease is held.
type patrol struct {
	volume   *volume.Volume
	locker   *locking.Locker
	redis    redis.UniversalClient
	key      string // claimed by the worker that patrols
	worker   string
	interval time.Duration // 0 disables the patrol
	log      *slog.Logger
	freed    func(bytes int64)
}

// patrolStats are the totals of one patrol.
type patrolStats struct {
	total               volume.Total
	freed               int64
	trees, busy, failed int
}

// Run patrols until ctx is done.
func (p patrol) Run(ctx context.Context) {
	runEvery(ctx, p.interval, func() {
		if claimed, err := p.redis.SetNX(ctx, p.key, p.worker, p.interval).Result(); err == nil && claimed {
			p.runOnce(ctx)
		}
	})
}

func (p patrol) runOnce(ctx context.Context) {
	began, renewed := time.Now(), time.Now()
	if err := p.volume.SweepLeftovers(); err != nil {
		p.log.WarnContext(ctx, "patrol cannot sweep the volume", "error", err)
	}
	var stats patrolStats
	for repo, err := range p.volume.Repos() {
		if err == nil {
			err = p.visit(ctx, repo, &stats)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, locking.ErrUnavailable), redisx.Unavailable(err):
			p.log.DebugContext(ctx, "patrol stopped early, redis is unavailable", "error", err)
			return
		case err != nil:
			stats.failed++
			p.log.WarnContext(ctx, "patrol failed for a repository", "repo", repo, "error", err)
		}
		if time.Since(renewed) > p.interval/4 {
			renewed = time.Now()
			_ = p.redis.SetXX(ctx, p.key, p.worker, p.interval).Err()
		}
	}
	stats.total.Patrolled = time.Now()
	if err := p.volume.SetTotal(stats.total); err != nil {
		p.log.WarnContext(ctx, "patrol cannot record the volume's totals", "error", err)
	}
	p.freed(stats.freed)
	level := slog.LevelDebug
	if stats.freed > 0 || stats.trees > 0 {
		level = slog.LevelInfo
	}
	p.log.Log(ctx, level, "patrol done", "repositories", stats.total.Repos, "bytes", stats.total.Bytes, "freed", stats.freed,
		"trees_dropped", stats.trees, "busy", stats.busy, "failed", stats.failed, "took", time.Since(began))
}

// visit collects one repository. It takes no lease and writes nothing if the repository is tidy, as most are.
func (p patrol) visit(ctx context.Context, repo events.RepoPath, stats *patrolStats) error {
	if p.volume.IsTidy(repo) {
		stats.total.Add(p.volume.Usage(repo))
		return nil
	}
	result, err := Collect(ctx, p.volume, p.locker, repo, CollectOptions{Operation: "patrol", IfHeld: locking.Skip})
	if err != nil {
		stats.total.Add(p.volume.Usage(repo))
		if errors.Is(err, locking.ErrHeld) {
			stats.busy++
			return nil
		}
		return err
	}
	stats.total.Add(result.Usage)
	stats.freed += result.Freed
	stats.trees += result.Trees
	p.log.DebugContext(ctx, "patrolled", "repo", repo, "bytes", result.Usage.Bytes, "freed", result.Freed)
	return nil
}

// volumeFigures returns a function that reads the metrics of a volume.
func volumeFigures(volume *volume.Volume) func() (telemetry.VolumeFigures, error) {
	return func() (telemetry.VolumeFigures, error) {
		space, err := volume.Space()
		if err != nil {
			return telemetry.VolumeFigures{}, err
		}
		total := volume.Total()
		return telemetry.VolumeFigures{
			Size: space.Size, Free: space.Free, FreeInodes: space.FreeInodes,
			Repos: total.Repos, Trees: total.Trees, Bytes: total.Bytes, Adopted: total.Adopted, Patrolled: total.Patrolled,
		}, nil
	}
}
