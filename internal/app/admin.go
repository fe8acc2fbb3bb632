package app

import (
	"context"
	"net"

	"lockstep/internal/server"
)

// administer serves profiles, metrics and health to operators until ctx is done.
func administer(ctx context.Context, listener net.Listener, cfg Config) error {
	if cfg.Listen == "" { // else it has them exported
		client := cfg.Redis.Open()
		defer client.Close()
		cfg.Metrics.Export(streamFigures(cfg, client))
	}
	return server.ServeAdmin(ctx, listener, server.Config{
		Live: cfg.live, Ready: cfg.ready, Metrics: cfg.Metrics.Handler(), Token: cfg.APIToken(), Log: cfg.Log,
	})
}
