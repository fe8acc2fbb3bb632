package app

import (
	"context"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/credential"
	"lockstep/internal/egress"
	"lockstep/internal/notify"
	"lockstep/internal/watch"
)

// runNotifier posts results to apps until ctx is done, then finishes posts in flight within the grace period.
func runNotifier(ctx context.Context, cfg Config) error {
	client := cfg.Redis.Open()
	defer client.Close()
	namespace := cfg.Namespace()
	trust, err := egress.NewTrust(cfg.CAFile)
	if err != nil {
		return err
	}
	hb := cfg.health.heartbeat(notifierHandler)
	reader := cfg.Redis.With(heartbeatHook{hb}).Open() // blocks for up to a second at a time
	defer reader.Close()
	notifier, err := notify.New(notify.Config{
		Earlier: earlierNotifications(cfg, client),
		Redis:   client, Reader: reader, Namespace: namespace,
		Registry: watch.NewRegistry(client, namespace), Secrets: credential.NewStore(cfg.Credentials, os.Getenv),
		Hosts: cfg.NotifyHosts, Trust: trust, UserAgent: "lockstep/" + ReadBuild().Version,
		Grace: max(cfg.Grace, 1), Log: cfg.Log, Observe: cfg.Metrics.Notification, Tracer: cfg.Traces.Tracer("notifier"),
		Propagator: cfg.Traces.Propagator(),
	})
	if err != nil {
		return err
	}
	defer cfg.Metrics.Outbox(func() (int64, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		return notify.Waiting(ctx, client, namespace)
	})()
	hb.running()
	defer hb.notReady(errEnded)
	notifier.Run(ctx)
	return nil
}

// earlierNotifications returns what tells a notifier whether the notifications of another cell are posted,
// nil without cells. Those of a cell that is gone, or lost, are not waited for.
func earlierNotifications(
	cfg Config, client redis.UniversalClient,
) func(context.Context, events.Follows, events.RepoPath, string) (bool, error) {
	if cfg.cells == nil {
		return nil
	}
	return func(ctx context.Context, follows events.Follows, repo events.RepoPath, app string) (bool, error) {
		cell, ok := cfg.cells.Cell(follows.Cell)
		if !ok || cell.State == cells.Gone {
			return true, nil
		}
		return notify.Outboxes{Redis: client, Namespace: cell.Prefix}.AllSent(ctx, repo, []string{app}, follows.Entry)
	}
}
