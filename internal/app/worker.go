package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/handlers"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/credential"
	"lockstep/internal/execute"
	"lockstep/internal/ext"
	"lockstep/internal/ext/lfs"
	"lockstep/internal/ext/signatures"
	"lockstep/internal/ext/submodules"
	"lockstep/internal/hosts"
	"lockstep/internal/redisx"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
	"lockstep/locking"
	"lockstep/router"
)

// Config configures a process. It adds dependencies to its settings.
type Config struct {
	config.Config
	Redis   redisx.Server
	Log     *slog.Logger
	Metrics *telemetry.Metrics
	Traces  *telemetry.Traces // nil disables tracing

	commands    map[string]execute.Command // by app; see Commands
	follow      *FollowConfig              // nil unless this process follows a reader
	cells       *cells.Directory           // nil without cells; closeCells closes its client
	closeCells  func() error
	hooks       *hookReceiver  // nil if this process receives no webhooks
	health      *health        // nil outside Serve
	live, ready *server.Health // checks of health

	NoPrepare bool // prepare no trees for later pushes

	Getenv func(name string) string // returns the variables of credentials for remotes; nil for os.Getenv

	Step func(name string) // see [volume.Config]; optional
}

// RunWorker handles changes until ctx is done, then drains. It waits if Redis is unavailable at the start.
func RunWorker(ctx context.Context, cfg Config) error {
	if cfg.Worker == "" {
		cfg.Worker = stream.UniqueConsumer()
	}
	cfg.Log = cfg.Log.With("worker", cfg.Worker)
	commands, pubsub := cfg.Redis.Open(), cfg.Redis.Open()
	defer commands.Close()
	defer pubsub.Close()
	slots := volume.NewSlots(cfg.Slots)
	prepares := newPreparer(slots, cfg.Log)
	vol, err := openVolume(cfg, commands, prepares, slots)
	if err != nil {
		return err
	}
	defer vol.Close()
	cfg.Root = vol.Root()
	hb := cfg.health.heartbeat(changesHandler)
	hb.notReady(errWaitingRedis)
	claim, err := claimer(ctx, cfg, commands, vol)
	if err != nil {
		return err
	}
	if err := awaitRedis(ctx, cfg.Redis, cfg.Log, claim); err != nil {
		return err
	}
	release, err := useVolume(ctx, cfg, vol)
	if err != nil {
		return err
	}
	defer release()
	hb.notReady(errStarting)
	locker, err := newLocker(cfg, commands, pubsub)
	if err != nil {
		return err
	}
	limiter, err := newLimiter(cfg, commands)
	if err != nil {
		return err
	}
	reporter := state.NewReporter(commands, cfg.Namespace(), cfg.Worker, cfg.Log)
	changes := newChanges(cfg, commands, vol, limiter, reporter)
	lost := newVanished(cfg, commands)
	room := func() int { hb.beat(); return slots.Room() }
	route, err := newRoute(cfg, commands, changes, locker, room, lost.report)
	if err != nil {
		return err
	}
	prepares.volume, prepares.locker = vol, locker
	trimmer := retention(cfg, commands)
	collector := gc{
		volume: vol, states: state.NewStore(commands, cfg.Namespace()), locker: locker, redis: commands,
		namespace: cfg.Namespace(), worker: cfg.Worker, interval: gcInterval(cfg.TreeGrace), safe: goneAfter(cfg),
		log: cfg.Log, freed: cfg.Metrics.Freed,
	}
	register := func(ctx context.Context) { keepRegistered(ctx, commands, cfg.Namespace(), vol, cfg.Log) }
	beside := []func(context.Context){trimmer.Run, prepares.Run, collector.Run, lost.run, register}
	if cfg.cells != nil {
		beside = append(beside, func(ctx context.Context) { runMoves(ctx, cfg, commands, pubsub, vol, locker) })
	}
	var running sync.WaitGroup
	defer running.Wait()
	working, stop := context.WithCancel(ctx)
	defer stop()
	for _, run := range beside {
		running.Go(func() { run(working) })
	}
	reporting, stopReporting := context.WithCancel(context.WithoutCancel(ctx)) // ends after the drain
	defer stopReporting()
	running.Go(func() { reporter.Run(reporting) })
	defer cfg.Metrics.Volume(volumeFigures(vol))()
	defer cfg.Metrics.Limiter(limiter.Load)()
	return handle(ctx, cfg, hb, route, locker, limiter, slots)
}

// claimer returns what registers the volume. Workers with an embedded Redis may share one, as fences order them, but not
// with a service, whose results name trees that they would delete.
func claimer(
	ctx context.Context, cfg Config, commands redis.UniversalClient, vol *volume.Volume,
) (claim func() error, err error) {
	if cfg.Config.Redis != "" {
		return func() error { return ClaimVolume(ctx, commands, cfg.Namespace(), vol) }, nil
	}
	used, err := vol.IsUsed()
	if used {
		err = fmt.Errorf("root %s is the volume of a running service: name its Redis with --redis, or choose another --root",
			vol.Root())
	}
	return func() error { return registerVolume(ctx, commands, cfg.Namespace(), vol) }, err
}

// useVolume marks the volume as that of a service until release.
func useVolume(ctx context.Context, cfg Config, vol *volume.Volume) (release func(), err error) {
	if cfg.Config.Redis == "" {
		return func() {}, nil
	}
	return vol.Use(ctx)
}

// openVolume opens the volume. prepares is told of trees to prepare.
func openVolume(
	cfg Config, commands redis.UniversalClient, prepares *preparer, slots *volume.Slots,
) (*volume.Volume, error) {
	volumeConfig := VolumeConfig(cfg.Config)
	volumeConfig.Slots = slots
	volumeConfig.Results, volumeConfig.Step = ResultWatermarks(commands, cfg.Namespace()), cfg.Step
	volumeConfig.Net.Log = cfg.Log
	if !cfg.NoPrepare {
		volumeConfig.Replaced = func(req volume.PrepareRequest) { prepares.add(preparation{PrepareRequest: req}) }
	}
	opened, err := volume.OpenVolume(cfg.Root, volumeConfig)
	if err != nil {
		return nil, err
	}
	cfg.health.volumeOpened(opened.ID())
	return opened, nil
}

// newLocker returns the locker of repositories.
func newLocker(cfg Config, commands, pubsub redis.UniversalClient) (*locking.Locker, error) {
	return locking.New(locking.Config{
		Redis: commands, PubSub: pubsub, Prefix: cfg.Namespace().Locks(),
		Lease: cfg.Lease, Wait: cfg.LockWait, Worker: cfg.Worker, Log: cfg.Log, KeyName: "repo",
		Observer: cfg.Metrics.Locks(),
	})
}

// newChanges returns what handles changes.
func newChanges(
	cfg Config, commands redis.UniversalClient, vol *volume.Volume, limiter *hosts.Limiter, reporter *state.Reporter,
) *handlers.Changes {
	getenv := os.Getenv
	if cfg.Getenv != nil {
		getenv = cfg.Getenv
	}
	credentials := credential.NewStore(cfg.Credentials, getenv).WithTransport(vol.Transport())
	h := &handlers.Handlers{
		Volume: vol, States: state.NewStore(commands, cfg.Namespace()), Log: cfg.Log, Credentials: credentials,
		Watches:    watch.NewRegistry(commands, cfg.Namespace()),
		Extensions: []ext.Extension{signatures.New(credentials), lfs.New(), submodules.New(credentials)},
	}
	changes := &handlers.Changes{
		Namespace: cfg.Namespace(), Source: "/lockstep/worker/" + cfg.Worker, Floor: vol.Floor,
		Limiter: limiter, Watches: h.Watches, Asked: vol.Asked,
		Observe: cfg.observe(reporter), Log: cfg.Log,
	}
	backoff := newBackoff(cfg, h.States)
	if cfg.cells == nil {
		changes.Handler = backoff.Wrap(h.Handle)
		return changes
	}
	forwarder := cells.Forwarder{Directory: cfg.cells, Cell: cfg.Cell}
	changes.Elsewhere, changes.Handler = forwarder.Forward, backoff.Wrap(renaming(cfg, h.Handle))
	return changes
}

func newBackoff(cfg Config, states *state.Store) handlers.Backoff {
	return handlers.Backoff{
		Store: states, Retry: retries(cfg), Open: 3 * cfg.Lease, Log: cfg.Log, Observe: cfg.Metrics.Circuit,
	}
}

// newRoute returns the route of changes. room returns how many more changes the worker could start, and lost is called for
// changes that have vanished.
func newRoute(
	cfg Config, commands redis.UniversalClient, changes *handlers.Changes, locker *locking.Locker, room func() int,
	lost func(n int64, keys []string),
) (router.Route, error) {
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Client: commands, Reader: cfg.Redis.Open(), Prefix: string(cfg.Namespace()),
		// 0 would select the default
		ConsumerGroup: events.WorkersGroup, Consumer: cfg.Worker, MaxIdleTime: cfg.Lease, Grace: max(cfg.Grace, 1),
		Key: changes.Key, Beside: changes.Beside, Room: room, Vanished: lost,
		Log: cfg.Log, Delivered: cfg.Metrics.Delivered, Finished: cfg.Metrics.Finished, Lapsed: cfg.Metrics.Lapsed,
	}, nil)
	if err != nil {
		return router.Route{}, err
	}
	before := []message.HandlerMiddleware{changes.Limit}
	if cfg.cells != nil {
		before = []message.HandlerMiddleware{changes.Forward, changes.Limit}
	}
	return router.Route{
		Name: "changes", Topic: cfg.Namespace().Changes(), Subscriber: subscriber, Handler: changes.Handle,
		Before: before, Locker: locker, Request: changes.Request,
		Tracer: cfg.Traces.Tracer("worker"), Dispose: changes.Dispose(retries(cfg)),
		OnPoison: newBackoff(cfg, state.NewStore(commands, cfg.Namespace())).Poisoned,
	}, nil
}

func retries(cfg Config) router.Retry {
	return router.Retry{MaxAttempts: cfg.MaxAttempts, Base: cfg.Lease / 10, Max: 30 * cfg.Lease, MaxAge: maxAge}
}

// handle runs the route until ctx is done, then drains it. Changes that wait in one of the queues return to the
// stream at once.
func handle(
	ctx context.Context, cfg Config, hb *heartbeat, route router.Route, locker *locking.Locker, queues ...queue,
) error {
	r, err := router.New(router.Config{
		Log: cfg.Log, CloseTimeout: cfg.Grace + drainMargin, Routes: []router.Route{route},
	})
	if err != nil {
		return err
	}
	stopped := make(chan error, 1)
	running, stopRouter := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRouter()
	go func() { stopped <- router.Run(running, r) }()
	failed := func(err error) error {
		return fmt.Errorf("router: %w", errors.Join(err, route.Subscriber.Close(), locker.Close(running)))
	}
	select {
	case <-r.Running():
		hb.running()
		cfg.Log.InfoContext(ctx, "worker takes changes", "root", cfg.Root, "slots", cfg.Slots)
	case err := <-stopped: // could not subscribe
		return failed(err)
	case <-ctx.Done():
	}
	select {
	case <-ctx.Done():
		hb.notReady(errDraining)
		cfg.Log.InfoContext(ctx, "worker draining", "grace", cfg.Grace)
	case err := <-stopped:
		return failed(err)
	}
	return drain(context.WithoutCancel(ctx), cfg.Grace, stopRouter, locker, stopped, queues...)
}

const (
	maxAge     = 7 * 24 * time.Hour  // of a failing change, which then becomes a dead letter
	deadMaxAge = 30 * 24 * time.Hour // of a dead letter
	changesCap = 1_000_000           // changes, above which the oldest are trimmed even if they are not settled
)

// retention returns the trimmer, which knows how much of each stream to keep.
func retention(cfg Config, client redis.UniversalClient) *stream.Trimmer {
	namespace := cfg.Namespace()
	return &stream.Trimmer{
		Redis: client, Prefix: string(namespace), Log: cfg.Log, Observe: cfg.Metrics.Trim,
		Streams: []stream.Retention{
			{Topic: namespace.Changes(), MaxLen: changesCap},
			{Topic: namespace.Results(), Keep: cfg.ResultsKeep, Age: 24 * time.Hour},
		},
		DeadAge: deadMaxAge,
	}
}

// queue is what changes wait for. Its Close ends the waits.
type queue interface{ Close() }

// drain stops the router, whose end stopped reports, and waits up to the grace period for jobs in flight.
func drain(
	ctx context.Context, grace time.Duration, stop func(), locker *locking.Locker, stopped <-chan error, queues ...queue,
) error {
	for _, queue := range queues {
		queue.Close()
	}
	stop()
	ctx, cancel := context.WithTimeout(ctx, grace+drainMargin)
	defer cancel()
	var g errgroup.Group
	g.Go(func() error { return locker.Close(ctx) })
	g.Go(func() error { return <-stopped })
	if err := g.Wait(); err != nil {
		return fmt.Errorf("drain: %w; other workers take over the remaining changes when their leases expire", err)
	}
	return nil
}

// drainMargin is the time beyond the grace period to return unfinished changes to the stream.
const drainMargin = 5 * time.Second

// redisRetryDelay is the time between attempts to use an unavailable Redis.
const redisRetryDelay = 500 * time.Millisecond

// awaitRedis calls try until it no longer fails with Redis unavailable. It logs the start and the end of the wait.
func awaitRedis(ctx context.Context, server redisx.Server, log *slog.Logger, try func() error) error {
	waiting := false
	for {
		err := try()
		switch {
		case err == nil:
			if waiting {
				log.InfoContext(ctx, "redis is available", "redis", server.String())
			}
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !redisx.Unavailable(err):
			return redisx.Explain(server, err)
		case !waiting:
			waiting = true
			log.ErrorContext(ctx, "waiting for redis", "error", redisx.Explain(server, err))
		}
		if !Sleep(ctx, redisRetryDelay) {
			return context.Cause(ctx)
		}
	}
}
