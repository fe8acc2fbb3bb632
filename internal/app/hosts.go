package app

import (
	"github.com/redis/go-redis/v9"

	"lockstep/internal/config"
	"lockstep/internal/hosts"
)

// newLimiter returns the limiter of requests to hosts. All processes share what the hosts say, also those of
// other cells.
func newLimiter(cfg Config, client redis.Scripter) (*hosts.Limiter, error) {
	limit, single := cfg.RequestsPerHost()
	return hosts.New(hosts.Config{
		Redis: client, Prefix: string(cfg.Shared()), Limit: limit, Overrides: single, Log: cfg.Log,
		Observe: cfg.Metrics.HostRequests(),
	})
}

// ReadHosts returns a reader of the limits of requests to hosts.
func ReadHosts(cfg config.Config, client redis.UniversalClient) hosts.Reader {
	return hosts.Reader{Redis: client, Prefix: string(cfg.Shared())}
}
