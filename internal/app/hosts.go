package app

import (
	"context"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/config"
	"lockstep/internal/hosts"
	"lockstep/internal/telemetry"
	"lockstep/router"
)

// hostBudgets returns the limits of requests to hosts, which all processes share. wake is as in [hosts.Config].
func hostBudgets(
	cfg Config, client redis.Scripter, process string, log *slog.Logger, wake func(context.Context, []hosts.Waiter) ([]bool, error),
) (*hosts.Budgets, error) {
	return hosts.New(hosts.Config{
		Redis: client, Prefix: string(cfg.Namespace()), Process: process, Limit: cfg.HostRequests, Overrides: hostLimits(cfg.Config),
		Wake: wake, Log: log, Observer: cfg.Metrics.HostRequests(),
	})
}

// wakeChanges makes the parked changes of the waiters due. It reports for each waiter whether any were parked.
func wakeChanges(ctx context.Context, subscriber *stream.Subscriber, namespace events.Namespace, waiters []hosts.Waiter) ([]bool, error) {
	changes := make([]stream.Waiter, len(waiters))
	for i, w := range waiters {
		changes[i] = stream.Waiter{Key: w.Key, Match: router.WaitsFor(w.Credential)}
	}
	return subscriber.Wake(ctx, namespace.Changes(), changes)
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
