package app

import (
	"context"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cache"
	"lockstep/internal/changes"
	"lockstep/internal/config"
	"lockstep/internal/dashboard"
	"lockstep/internal/feed"
	"lockstep/internal/operate"
	"lockstep/internal/server"
	"lockstep/internal/state"
)

// openDashboard starts the dashboard, which shows the data that the API serves. The returned function stops it.
func openDashboard(
	ctx context.Context, cfg Config, client redis.UniversalClient, listener net.Listener, api server.Config,
) (*dashboard.Dashboard, func(), error) {
	namespace, admin := cfg.Namespace(), cfg.Admin()
	dashboardConfig := dashboard.Config{
		Redis: client, Results: namespace.Results(), Changes: namespace.Changes(), Group: events.WorkersGroup,
		Leases: api.Leases, Letters: api.Letters, Outboxes: api.Outboxes, Streams: api.Streams,
		Hosts: api.Hosts, Workers: api.Workers, Outcomes: api.Results, Repos: api.Repos, Watches: api.Watches,
		Activities: state.NewStore(client, namespace).Activities, PollEvery: cfg.PollEvery,
		Followers: feed.NewFollowers(client, cfg.Cell, namespace, cfg.Shared()).List,
		Guard:     server.Guard{Token: cfg.APIToken, Loopback: server.Loopback(listener)},
		Proxy:     dashboard.Proxy{Header: admin.Header, Users: admin.Users, From: cfg.Proxies()},
		Realm:     string(namespace), Version: ReadBuild().Version, Log: cfg.Log,
	}
	if cfg.Has(config.RoleWorker) {
		viewer := &volumeViewer{cfg: cfg.Config, redis: client}
		dashboardConfig.Size = func(repo events.RepoPath) (bytes int64, known bool) { return sizeOf(ctx, viewer, repo) }
		dashboardConfig.Full = func() bool { return isFull(ctx, viewer) }
	}
	if api.Publisher != nil {
		dashboardConfig.Publish = func(ctx context.Context, change events.Change) (string, error) {
			cell, err := api.Watches.Cells.Of(change.Repo)
			if err != nil {
				return "", err
			}
			return changes.Publish(ctx, client, cell.Namespace, change)
		}
	}
	if cfg.cells != nil {
		dashboardConfig.Cell, dashboardConfig.Cells = cfg.Cell, shownCells(cfg, client)
	}
	ctx, cancel := context.WithCancel(ctx)
	board, err := dashboard.New(ctx, dashboardConfig)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return board, func() { cancel(); board.Wait() }, nil
}

// cellsAskedEvery is how long the dashboard shows the same answers of the cells.
const cellsAskedEvery = 5 * time.Second

// shownCells returns the cells for the dashboard.
func shownCells(cfg Config, client redis.UniversalClient) func(context.Context) []operate.Cell {
	shown := cache.Cache[[]operate.Cell]{TTL: cellsAskedEvery, Timeout: cellsAskedEvery}
	return func(ctx context.Context) []operate.Cell {
		all, _ := shown.Get(ctx, func(ctx context.Context) ([]operate.Cell, error) {
			return operate.Directory(ctx, client, cfg.cells), nil
		})
		return all
	}
}

// sizeOf returns the last measured size of a repository plus what was added since; false if unknown.
func sizeOf(ctx context.Context, viewer *volumeViewer, repo events.RepoPath) (bytes int64, known bool) {
	vol, err := viewer.open(ctx)
	if err != nil {
		return 0, false
	}
	usage := vol.Usage(repo)
	return usage.Bytes + usage.Added, !usage.Measured.IsZero() || usage.Added > 0
}

// isFull reports whether the volume is nearly full, false if that is unknown.
func isFull(ctx context.Context, viewer *volumeViewer) bool {
	vol, err := viewer.open(ctx)
	if err != nil {
		return false
	}
	space, err := vol.Space()
	return err == nil && operate.NearlyFull(space.Free, space.Size)
}
