package app

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/dashboard"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// openDashboard makes the dashboard of what the API shows. The function that it returns ends it.
func openDashboard(ctx context.Context, cfg Config, client redis.UniversalClient, listener net.Listener, api server.Config) (*dashboard.Dashboard, func(), error) {
	namespace := cfg.Namespace()
	states := state.NewStore(client, namespace)
	shown := dashboard.Config{
		Redis: client, Results: namespace.Results(), Changes: namespace.Changes(), Group: events.WorkersGroup,
		Locks: api.Locks, Dead: api.Dead, Streams: api.Streams, Repos: states, Watches: watch.NewRegistry(client, namespace), Activities: states,
		PollEvery: cfg.PollEvery,
		Guard:     server.Guard{Token: cfg.APIToken(), Loopback: server.Loopback(listener)},
		Proxy:     dashboard.Proxy{Header: cfg.AdminHeader, Users: cfg.AdminUsers, From: cfg.Proxies()},
		Realm:     string(namespace), Version: ReadBuild().Version, Log: cfg.Log,
	}
	if cfg.Has(config.RoleWorker) {
		shown.Size = (&sizes{ctx: ctx, cfg: cfg.Config, redis: client}).of
	}
	ctx, cancel := context.WithCancel(ctx)
	board, err := dashboard.New(ctx, shown)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return board, func() { cancel(); board.Wait() }, nil
}

// sizes are what repositories take on the volume of the worker beside. It may be there later than the dashboard.
type sizes struct {
	ctx   context.Context
	cfg   config.Config
	redis redis.UniversalClient

	mu     sync.Mutex
	volume *volume.Volume
	tried  time.Time
}

// of is what was last measured, and what was added since; false when nothing is known.
func (s *sizes) of(repo events.RepoPath) (int64, bool) {
	volume := s.view()
	if volume == nil {
		return 0, false
	}
	usage := volume.Usage(repo)
	return usage.Bytes + usage.Added, !usage.Measured.IsZero() || usage.Added > 0
}

// view looks for the volume every now and then until it is there.
func (s *sizes) view() *volume.Volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.volume == nil && time.Since(s.tried) > 5*time.Second {
		s.tried = time.Now()
		s.volume, _ = ViewVolume(s.ctx, s.cfg, s.redis) // none is as good as one that cannot be read: no size is shown
	}
	return s.volume
}
