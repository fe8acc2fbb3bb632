package app

import (
	"context"
	"log/slog"
	"math/rand/v2"
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

// scheduling has watched repositories polled and reconciles until ctx is done.
func scheduling(ctx context.Context, cfg Config) error {
	client := cfg.Redis.Open()
	defer client.Close()
	namespace, p := cfg.Namespace(), cfg.vitals.of(schedulerHandler)
	poller := schedule.Poller{
		Due: watch.NewRegistry(client, namespace), Usual: cfg.PollEvery, Observe: cfg.Metrics.Polls, Log: cfg.Log,
		Backlog: func(ctx context.Context) (int, error) {
			p.beat()
			return backlog(ctx, client, namespace)
		},
	}
	p.runs()
	defer p.rests(errEnded)
	var both sync.WaitGroup
	both.Go(func() { poller.Run(ctx) })
	both.Go(func() { reconcileInTurn(ctx, cfg, client) })
	both.Wait()
	return nil
}

// backlog is how many changes wait for a worker. What is parked until its moment comes does not, as when a
// remote is away: nor do polls of the others wait for that.
func backlog(ctx context.Context, client redis.UniversalClient, namespace events.Namespace) (int, error) {
	figures, err := stream.Stats(ctx, client, string(namespace), namespace.Changes())
	if err != nil {
		return 0, err
	}
	group, _ := figures.Group(events.WorkersGroup)
	return int(max(group.Lag, 0) + group.Late), nil
}

// reconcileInTurn reconciles whenever it is this process's turn, which is whoever's comes first once the
// last turn is over, provided that the volume is at hand.
func reconcileInTurn(ctx context.Context, cfg Config, client redis.UniversalClient) {
	every := cfg.ReconcileEvery
	if every == 0 {
		return
	}
	for wait := rand.N(every); ; wait = every*9/10 + rand.N(every/5) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		volume, err := ViewVolume(ctx, cfg.Config, client)
		if err == nil && volume == nil {
			cfg.Log.DebugContext(ctx, "not reconciling: the volume is not at hand here", "root", cfg.Root)
			continue
		}
		if err == nil {
			var mine bool
			if mine, err = client.SetNX(ctx, cfg.Namespace().Reconcile(), "1", every*8/10).Result(); err == nil && !mine {
				continue
			}
		}
		if err == nil {
			err = reconcileNow(ctx, cfg, client, volume)
		}
		if err != nil && ctx.Err() == nil {
			cfg.Log.WarnContext(ctx, "cannot reconcile", "error", err)
		}
	}
}

func reconcileNow(ctx context.Context, cfg Config, client redis.UniversalClient, volume *volume.Volume) error {
	began := time.Now()
	r, err := Reconciler(cfg.Config, client, volume, cfg.Log)
	if err != nil {
		return err
	}
	report, err := r.Run(ctx)
	if err != nil {
		return err
	}
	cfg.Metrics.Reconciled(report)
	cfg.Log.InfoContext(ctx, "reconciled", "watched", report.Watched, "clones", report.Clones, "busy", report.Busy,
		"findings", len(report.Findings), "took", time.Since(began))
	return nil
}

func Reconciler(cfg config.Config, client redis.UniversalClient, volume *volume.Volume, log *slog.Logger) (schedule.Reconciler, error) {
	namespace := cfg.Namespace()
	inspector, err := locking.NewInspector(locking.InspectorConfig{Redis: client, Prefix: namespace.Locks()})
	if err != nil {
		return schedule.Reconciler{}, err
	}
	return schedule.Reconciler{
		Registry: watch.NewRegistry(client, namespace), States: state.NewStore(client, namespace), Volume: volume, Locks: inspector,
		Publish: func(ctx context.Context, change events.Change) error {
			return PublishChange(ctx, client, namespace, change)
		},
		Source: "/lockstep/reconcile", Log: log,
	}, nil
}
