package app

import (
	"context"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/config"
	"lockstep/internal/hosts"
	"lockstep/internal/telemetry"
)

// hostBudgets returns the limits of requests to hosts, which all processes share. wake is as in [hosts.Config].
func hostBudgets(
	cfg Config, client redis.Scripter, process string, log *slog.Logger, wake func(context.Context, []string) ([]string, error),
) (*hosts.Budgets, error) {
	return hosts.New(hosts.Config{
		Redis: client, Prefix: string(cfg.Namespace()), Process: process, Limit: cfg.HostRequests, Overrides: hostLimits(cfg.Config),
		Wake: wake, Log: log, Observer: cfg.Metrics.HostRequests(),
	})
}

// hostMetrics reads the limits of requests to hosts.
func hostMetrics(cfg Config, client redis.UniversalClient) *telemetry.Hosts {
	return telemetry.NewHosts(ReadHosts(cfg.Config, client))
}

// ReadHosts returns a reader of the limits of requests to hosts.
func ReadHosts(cfg config.Config, client redis.UniversalClient) hosts.Reader {
	return hosts.Reader{Redis: client, Prefix: string(cfg.Namespace()), Limit: cfg.HostRequests, Overrides: hostLimits(cfg)}
}

func hostLimits(cfg config.Config) map[string]hosts.Limits {
	overrides := make(map[string]hosts.Limits)
	for host, n := range cfg.RequestsPerHost() {
		overrides[host] = hosts.Limits{Permits: n}
	}
	return overrides
}
