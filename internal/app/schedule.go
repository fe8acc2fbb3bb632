package app

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/config"
	"lockstep/internal/schedule"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// runScheduler polls and reconciles watched repositories until ctx is done.
func runScheduler(ctx context.Context, cfg Config) error {
	client := cfg.Redis.Open()
	defer client.Close()
	namespace, hb := cfg.Namespace(), cfg.health.heartbeat(schedulerHandler)
	poller := schedule.Poller{
		Due: watch.NewRegistry(client, namespace), Usual: cfg.PollEvery, Observe: cfg.Metrics.Polls, Log: cfg.Log,
		Backlog: func(ctx context.Context) (int, error) {
			hb.beat()
			return backlog(ctx, client, namespace)
		},
	}
	hb.running()
	defer hb.notReady(errEnded)
	var both sync.WaitGroup
	both.Go(func() { poller.Run(ctx) })
	both.Go(func() { runReconciler(ctx, cfg, client) })
	both.Wait()
	return nil
}

// backlog counts the changes waiting for a worker.
func backlog(ctx context.Context, client redis.UniversalClient, namespace events.Namespace) (int, error) {
	figures, err := stream.Stats(ctx, client, string(namespace), namespace.Changes())
	if err != nil {
		return 0, err
	}
	group, _ := figures.Group(events.WorkersGroup)
	return schedule.Backlog(group.Lag, group.Late), nil
}

const reconcileEvery = 6 * time.Hour

// runReconciler reconciles until ctx is done. In each interval, the first process with a mounted volume to
// claim it reconciles.
func runReconciler(ctx context.Context, cfg Config, client redis.UniversalClient) {
	runEvery(ctx, reconcileEvery, func() {
		if err := reconcile(ctx, cfg, client); err != nil && ctx.Err() == nil {
			cfg.Log.WarnContext(ctx, "reconcile failed", "error", err)
		}
	})
}

func reconcile(ctx context.Context, cfg Config, client redis.UniversalClient) error {
	volume, err := ViewVolume(ctx, cfg.Config, client)
	if err != nil {
		return err
	}
	if volume == nil {
		cfg.Log.DebugContext(ctx, "not reconciling, the volume is not mounted here", "root", cfg.Root)
		return nil
	}
	claimed, err := client.SetNX(ctx, cfg.Namespace().Reconcile(), "1", turn(reconcileEvery)).Result()
	if err != nil || !claimed {
		return err
	}
	began := time.Now()
	report, err := NewReconciler(cfg.Config, client, volume, cfg.Log).Run(ctx)
	if err != nil {
		return err
	}
	cfg.Metrics.Reconciled(report)
	cfg.Log.InfoContext(ctx, "reconciled", "watched", report.Watched, "clones", report.Clones, "busy", report.Busy,
		"findings", len(report.Findings), "took", time.Since(began))
	return nil
}

// NewReconciler returns a reconciler of the deployment.
func NewReconciler(
	cfg config.Config, client redis.UniversalClient, volume *volume.Volume, log *slog.Logger,
) schedule.Reconciler {
	namespace := cfg.Namespace()
	return schedule.Reconciler{
		Registry: watch.NewRegistry(client, namespace), States: state.NewStore(client, namespace), Volume: volume,
		Locks: locking.NewInspector(client, namespace.Locks()),
		Publish: func(ctx context.Context, change events.Change) error {
			return PublishChange(ctx, client, namespace, change)
		},
		Source: "/lockstep/reconcile", Log: log,
	}
}
