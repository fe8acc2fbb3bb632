package app

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redisx"
	"lockstep/internal/telemetry"
	"lockstep/internal/volume"
	"lockstep/locking"
)

// patrol looks after the repositories that nobody syncs: their replaced trees go when their grace is
// over, what crashed workers left goes, and all are measured. One worker of a deployment does so at a
// time, one repository after the other, each under its lease; one that is being worked on is left out.
type patrol struct {
	volume *volume.Volume
	locker *locking.Locker
	redis  redis.UniversalClient
	key    string // held by the worker that does it
	worker string
	every  time.Duration // 0: never
	log    *slog.Logger
	freed  func(bytes int64)
}

// Run patrols until ctx is done. Workers that were started together do not look at the same moment.
func (p patrol) Run(ctx context.Context) {
	if p.every == 0 {
		return
	}
	for wait := rand.N(p.every); ; wait = p.every*9/10 + rand.N(p.every/5) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if p.mayGo(ctx) {
			p.walk(ctx)
		}
	}
}

// mayGo reports whether it is this worker's turn: whoever comes first once the last turn is over.
func (p patrol) mayGo(ctx context.Context) bool {
	mine, err := p.redis.SetNX(ctx, p.key, p.worker, p.every).Result()
	return err == nil && mine
}

// patrolRound is what one patrol has come to.
type patrolRound struct {
	total               volume.Total
	freed               int64
	trees, busy, failed int
}

func (p patrol) walk(ctx context.Context) {
	began, renewed := time.Now(), time.Now()
	if err := p.volume.SweepLeftovers(); err != nil {
		p.log.WarnContext(ctx, "patrol cannot sweep the volume", "error", err)
	}
	var r patrolRound
	for repo, err := range p.volume.Repos() {
		if err == nil {
			err = p.visit(ctx, repo, &r)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, locking.ErrUnavailable), redisx.Unavailable(err):
			p.log.DebugContext(ctx, "patrol ends early", "error", err)
			return
		case err != nil:
			r.failed++
			p.log.WarnContext(ctx, "patrol cannot look after a repository", "repo", repo, "error", err)
		}
		if time.Since(renewed) > p.every/4 { // a long round stays this worker's
			renewed = time.Now()
			_ = p.redis.SetXX(ctx, p.key, p.worker, p.every).Err()
		}
	}
	r.total.Patrolled = time.Now()
	if err := p.volume.SetTotal(r.total); err != nil {
		p.log.WarnContext(ctx, "patrol cannot note what the volume holds", "error", err)
	}
	p.freed(r.freed)
	level := slog.LevelDebug
	if r.freed > 0 || r.trees > 0 {
		level = slog.LevelInfo
	}
	p.log.Log(ctx, level, "patrol done", "repositories", r.total.Repos, "bytes", r.total.Bytes, "freed", r.freed,
		"trees_dropped", r.trees, "busy", r.busy, "failed", r.failed, "took", time.Since(began))
}

// visit looks after one repository, unless it is being worked on.
func (p patrol) visit(ctx context.Context, repo events.RepoPath, r *patrolRound) error {
	if p.volume.IsTidy(repo) { // most are: no lease is taken, nothing is written
		r.total.Add(p.volume.Usage(repo))
		return nil
	}
	result, err := Collect(ctx, p.volume, p.locker, repo, GcMode{Operation: "patrol", IfHeld: locking.Skip})
	if errors.Is(err, locking.ErrHeld) {
		r.busy++
		r.total.Add(p.volume.Usage(repo))
		return nil
	}
	if err != nil {
		r.total.Add(p.volume.Usage(repo))
		return err
	}
	r.total.Add(result.Usage)
	r.freed += result.Freed
	r.trees += result.Trees
	p.log.DebugContext(ctx, "patrolled", "repo", repo, "bytes", result.Usage.Bytes, "freed", result.Freed)
	return nil
}

// figuresOf reads what there is to export of a volume.
func figuresOf(volume *volume.Volume) func() (telemetry.VolumeFigures, error) {
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
