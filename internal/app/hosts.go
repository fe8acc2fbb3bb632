package app

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/handlers"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/hosts"
	"lockstep/internal/telemetry"
)

// hostBudgets returns the limits of requests to hosts, which all processes share, also those of other cells. wake is as in [hosts.Config].
func hostBudgets(
	cfg Config, client redis.Scripter, process string, log *slog.Logger, wake func(context.Context, []hosts.Waiter) ([]bool, error),
) (*hosts.Budgets, error) {
	if cfg.cells != nil {
		process = cfg.Cell + "/" + process
	}
	usual, single := hostLimits(cfg.Config)
	return hosts.New(hosts.Config{
		Redis: client, Prefix: string(cfg.Shared()), Process: process, Limit: usual, Overrides: single,
		Wake: wake, Log: log, Observer: cfg.Metrics.HostRequests(),
	})
}

// wakeChanges makes the parked changes of the waiters due. It reports for each waiter whether any were parked.
func wakeChanges(ctx context.Context, subscriber *stream.Subscriber, namespace events.Namespace, waiters []hosts.Waiter) ([]bool, error) {
	changes := make([]stream.Waiter, len(waiters))
	for i, w := range waiters {
		changes[i] = stream.Waiter{Key: w.Key, Match: handlers.WaitsFor(w.Credential)}
	}
	return subscriber.Wake(ctx, namespace.Changes(), changes)
}

// cellWaker wakes waiters in the cells of their repositories, because all cells share the limits of hosts.
type cellWaker struct {
	directory *cells.Directory
	config    stream.SubscriberConfig // but for Prefix and Dead

	mu          sync.Mutex
	subscribers map[cells.Member]*stream.Subscriber
}

// wake is [wakeChanges] in all cells. A waiter whose cell does not answer is not woken, so that it holds no permit: it asks again after its
// delay.
func (w *cellWaker) wake(ctx context.Context, waiters []hosts.Waiter) ([]bool, error) {
	set, of := cells.All(w.config.Client, w.directory), map[cells.Member][]int{}
	woken := make([]bool, len(waiters))
	for i, waiter := range waiters {
		repo, err := events.ParseRepoPath(waiter.Key)
		if err != nil {
			continue
		}
		cell, err := set.Of(repo)
		if err != nil {
			return nil, err
		}
		of[cell] = append(of[cell], i)
	}
	for _, a := range cells.Gather(ctx, slices.Collect(maps.Keys(of)), cells.AnswerTimeout, func(ctx context.Context, cell cells.Member) ([]bool, error) {
		subscriber, err := w.subscriber(cell)
		if err != nil {
			return nil, err
		}
		some := make([]hosts.Waiter, len(of[cell]))
		for n, i := range of[cell] {
			some[n] = waiters[i]
		}
		return wakeChanges(ctx, subscriber, cell.Namespace, some)
	}) {
		for n, i := range of[a.Member] {
			woken[i] = a.Err == nil && a.Value[n]
		}
	}
	return woken, nil
}

// wakeMoved wakes changes that a repository has left behind in a cell, up to eight, for its worker to forward them. The others are due later.
func (w *cellWaker) wakeMoved(ctx context.Context, repo events.RepoPath, from cells.Member) {
	subscriber, err := w.subscriber(from)
	if err == nil {
		_, err = subscriber.Wake(ctx, from.Namespace.Changes(), []stream.Waiter{{Key: repo.Key()}})
	}
	if err != nil {
		w.config.Log.DebugContext(ctx, "changes of a repository that has moved are not woken", "repo", repo.String(), "cell", from.Name, "error", err)
	}
}

// subscriber returns one for the changes of a cell. It only wakes them, so it needs no Close.
func (w *cellWaker) subscriber(cell cells.Member) (*stream.Subscriber, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.subscribers[cell]; known != nil {
		return known, nil
	}
	cfg := w.config
	cfg.Prefix, cfg.Dead = string(cell.Namespace), cell.Namespace.Dead()
	subscriber, err := stream.NewSubscriber(cfg, nil)
	if err == nil {
		w.subscribers[cell] = subscriber
	}
	return subscriber, err
}

// hostMetrics reads the limits of requests to hosts.
func hostMetrics(cfg Config, client redis.UniversalClient) *telemetry.Hosts {
	return telemetry.NewHosts(ReadHosts(cfg.Config, client))
}

// ReadHosts returns a reader of the limits of requests to hosts.
func ReadHosts(cfg config.Config, client redis.UniversalClient) hosts.Reader {
	usual, single := hostLimits(cfg)
	return hosts.Reader{Redis: client, Prefix: string(cfg.Shared()), Limit: usual, Overrides: single}
}

func hostLimits(cfg config.Config) (usual int, single map[string]hosts.Limits) {
	usual, requests := cfg.RequestsPerHost()
	single = make(map[string]hosts.Limits, len(requests))
	for host, n := range requests {
		single[host] = hosts.Limits{Permits: n}
	}
	return usual, single
}
