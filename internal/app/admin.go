package app

import (
	"context"
	"net"

	"lockstep/internal/server"
)

// serveAdmin serves profiles, metrics and health to operators until ctx is done.
func serveAdmin(ctx context.Context, listener net.Listener, cfg Config) error {
	if cfg.Listen == "" { // otherwise ServeHTTP exports them
		client := cfg.Redis.Open()
		defer client.Close()
		cfg.Metrics.Export(streamMetrics(cfg, client))
	}
	return server.ServeAdmin(ctx, listener, server.Config{
		Live: cfg.live, Ready: cfg.ready, Metrics: cfg.Metrics.Handler(), Token: cfg.APIToken(), Log: cfg.Log,
	})
}
