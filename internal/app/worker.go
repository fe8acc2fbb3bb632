package app

import (
	"cmp"
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

// worker handles changes: what its parts share.
type worker struct {
	Config
	hb       *heartbeat
	client   redis.UniversalClient
	pubsub   redis.UniversalClient
	slots    *volume.Slots
	prepares *preparer
	volume   *volume.Volume
	states   *state.Store
	reporter *state.Reporter
	locker   *locking.Locker
	limiter  *hosts.Limiter
	backoff  handlers.Backoff
}

// RunWorker handles changes until ctx is done, then drains. It waits if Redis is unavailable at the start.
func RunWorker(ctx context.Context, cfg Config) error {
	cfg.Worker = cmp.Or(cfg.Worker, stream.UniqueConsumer())
	cfg.Log = cfg.Log.With("worker", cfg.Worker)
	w := &worker{
		Config: cfg, hb: cfg.health.heartbeat(changesHandler), client: cfg.Redis.Open(), pubsub: cfg.Redis.Open(),
		slots: volume.NewSlots(cfg.Slots),
	}
	defer w.client.Close()
	defer w.pubsub.Close()
	w.prepares = newPreparer(w.slots, cfg.Log)
	if err := w.openVolume(); err != nil {
		return err
	}
	defer w.volume.Close()
	release, err := w.claimVolume(ctx)
	if err != nil {
		return err
	}
	defer release()
	w.states = state.NewStore(w.client, w.Namespace())
	w.reporter = state.NewReporter(w.client, w.Namespace(), w.Worker, w.Log)
	w.backoff = handlers.Backoff{
		Store: w.states, Retry: w.retry(), Open: 3 * w.Lease, Log: w.Log, Observe: w.Metrics.Circuit,
	}
	if w.locker, err = newLocker(w.Config, w.client, w.pubsub, w.Metrics.Locks()); err != nil {
		return err
	}
	if w.limiter, err = newLimiter(w.Config, w.client); err != nil {
		return err
	}
	w.prepares.volume, w.prepares.locker = w.volume, w.locker
	return w.run(ctx)
}

// run handles changes until ctx is done, then drains, with what else a worker does beside.
func (w *worker) run(ctx context.Context) error {
	lost := newVanished(w.Config, w.client)
	route, err := w.route(w.changes(), lost.report)
	if err != nil {
		return err
	}
	collector := gc{
		volume: w.volume, states: w.states, locker: w.locker, redis: w.client, namespace: w.Namespace(), worker: w.Worker,
		interval: gcInterval(w.TreeGrace), safe: goneAfter(w.Config), log: w.Log, freed: w.Metrics.Freed,
	}
	register := func(ctx context.Context) { keepRegistered(ctx, w.client, w.Namespace(), w.volume, w.Log) }
	beside := []func(context.Context){w.retention().Run, w.prepares.Run, collector.Run, lost.run, register}
	if w.cells != nil {
		beside = append(beside, func(ctx context.Context) {
			runMoves(ctx, w.Config, w.client, w.pubsub, w.volume, w.locker)
		})
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
	running.Go(func() { w.reporter.Run(reporting) })
	defer w.Metrics.Volume(func() (telemetry.VolumeFigures, error) {
		space, err := w.volume.Space()
		return telemetry.VolumeFigures{Space: space, Total: w.volume.Total()}, err
	})()
	defer w.Metrics.Limiter(w.limiter.Load)()
	return w.handle(ctx, route)
}

func (w *worker) openVolume() (err error) {
	cfg := VolumeConfig(w.Config.Config)
	cfg.Slots, cfg.Results, cfg.Step, cfg.Net.Log = w.slots, ResultWatermarks(w.client, w.Namespace()), w.Step, w.Log
	if !w.NoPrepare {
		cfg.Replaced = func(req volume.PrepareRequest) { w.prepares.add(preparation{PrepareRequest: req}) }
	}
	if w.volume, err = volume.OpenVolume(w.Root, cfg); err != nil {
		return err
	}
	w.Root = w.volume.Root()
	w.health.volumeOpened(w.volume.ID())
	return nil
}

// claimVolume waits for Redis, registers the volume there, and marks it as that of a service until release. Workers
// with an embedded Redis may share one, as fences order them, but not with a service, whose results name trees that
// they would delete.
func (w *worker) claimVolume(ctx context.Context) (release func(), err error) {
	claim, isEmbedded := ClaimVolume, w.Config.Config.Redis == ""
	if isEmbedded {
		used, err := w.volume.IsUsed()
		if used {
			err = fmt.Errorf("root %s is the volume of a running service: name its Redis with --redis, or choose another "+
				"--root", w.Root)
		}
		if err != nil {
			return nil, err
		}
		claim = registerVolume
	}
	w.hb.notReady(errWaitingRedis)
	err = awaitRedis(ctx, w.Redis, w.Log, func() error { return claim(ctx, w.client, w.Namespace(), w.volume) })
	w.hb.notReady(errStarting)
	if err != nil || isEmbedded {
		return func() {}, err
	}
	return w.volume.Use(ctx)
}

// newLocker returns the locker of repositories. observer is optional.
func newLocker(cfg Config, commands, pubsub redis.UniversalClient, observer locking.Observer) (*locking.Locker, error) {
	return locking.New(locking.Config{
		Redis: commands, PubSub: pubsub, Prefix: cfg.Namespace().Locks(),
		Lease: cfg.Lease, Wait: cfg.LockWait, Worker: cfg.Worker, Log: cfg.Log, KeyName: "repo", Observer: observer,
	})
}

// changes returns what handles changes.
func (w *worker) changes() *handlers.Changes {
	getenv := os.Getenv
	if w.Getenv != nil {
		getenv = w.Getenv
	}
	credentials := credential.NewStore(w.Credentials, getenv).WithTransport(w.volume.Transport())
	h := &handlers.Handlers{
		Volume: w.volume, States: w.states, Log: w.Log, Credentials: credentials,
		Watches:    watch.NewRegistry(w.client, w.Namespace()),
		Extensions: []ext.Extension{signatures.New(credentials), lfs.New(), submodules.New(credentials)},
	}
	changes := &handlers.Changes{
		Namespace: w.Namespace(), Source: "/lockstep/worker/" + w.Worker, Floor: w.volume.Floor,
		Limiter: w.limiter, Watches: h.Watches, Asked: w.volume.Asked, Handler: w.backoff.Wrap(h.Handle),
		Observe: w.observe(w.reporter), Log: w.Log,
	}
	if w.cells != nil {
		forwarder := cells.Forwarder{Directory: w.cells, Cell: w.Cell}
		changes.Elsewhere, changes.Handler = forwarder.Forward, w.backoff.Wrap(renaming(w.Config, h.Handle))
	}
	return changes
}

// route returns the route of changes. lost is called for changes that have vanished.
func (w *worker) route(changes *handlers.Changes, lost func(n int64, keys []string)) (router.Route, error) {
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Client: w.client, Reader: w.Redis.Open(), Prefix: string(w.Namespace()),
		// 0 would select the default
		ConsumerGroup: events.WorkersGroup, Consumer: w.Worker, MaxIdleTime: w.Lease, Grace: max(w.Grace, 1),
		Key: changes.Key, Beside: changes.Beside, Room: func() int { w.hb.beat(); return w.slots.Room() }, Vanished: lost,
		Log: w.Log, Delivered: w.Metrics.Delivered, Finished: w.Metrics.Finished, Lapsed: w.Metrics.Lapsed,
	}, nil)
	if err != nil {
		return router.Route{}, err
	}
	before := []message.HandlerMiddleware{changes.Limit}
	if w.cells != nil {
		before = []message.HandlerMiddleware{changes.Forward, changes.Limit}
	}
	return router.Route{
		Name: "changes", Topic: w.Namespace().Changes(), Subscriber: subscriber, Handler: changes.Handle,
		Before: before, Locker: w.locker, Request: changes.Request,
		Tracer: w.Traces.Tracer("worker"), Dispose: changes.Dispose(w.retry()), OnPoison: w.backoff.Poisoned,
	}, nil
}

func (w *worker) retry() router.Retry {
	return router.Retry{MaxAttempts: w.MaxAttempts, Base: w.Lease / 10, Max: 30 * w.Lease, MaxAge: maxAge}
}

// handle runs the route until ctx is done, then drains it.
func (w *worker) handle(ctx context.Context, route router.Route) error {
	r, err := router.New(router.Config{
		Log: w.Log, CloseTimeout: w.Grace + drainMargin, Routes: []router.Route{route},
	})
	if err != nil {
		return err
	}
	stopped := make(chan error, 1)
	running, stopRouter := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRouter()
	go func() { stopped <- router.Run(running, r) }()
	failed := func(err error) error {
		return fmt.Errorf("router: %w", errors.Join(err, route.Subscriber.Close(), w.locker.Close(running)))
	}
	select {
	case <-r.Running():
		w.hb.running()
		w.Log.InfoContext(ctx, "worker takes changes", "root", w.Root, "slots", w.Slots)
	case err := <-stopped: // could not subscribe
		return failed(err)
	case <-ctx.Done():
	}
	select {
	case <-ctx.Done():
		w.hb.notReady(errDraining)
		w.Log.InfoContext(ctx, "worker draining", "grace", w.Grace)
	case err := <-stopped:
		return failed(err)
	}
	return w.drain(context.WithoutCancel(ctx), stopRouter, stopped)
}

const (
	maxAge     = 7 * 24 * time.Hour  // of a failing change, which then becomes a dead letter
	deadMaxAge = 30 * 24 * time.Hour // of a dead letter
	changesCap = 1_000_000           // changes, above which the oldest are trimmed even if they are not settled
)

// retention returns the trimmer, which knows how much of each stream to keep.
func (w *worker) retention() *stream.Trimmer {
	return &stream.Trimmer{
		Redis: w.client, Prefix: string(w.Namespace()), Log: w.Log, Observe: w.Metrics.Trim,
		Streams: []stream.Retention{
			{Topic: w.Namespace().Changes(), MaxLen: changesCap},
			{Topic: w.Namespace().Results(), Keep: w.ResultsKeep, Age: 24 * time.Hour},
		},
		DeadAge: deadMaxAge,
	}
}

// drain stops the router, whose end stopped reports, and waits up to the grace period for jobs in flight. Changes that
// wait for a host or a slot return to the stream at once.
func (w *worker) drain(ctx context.Context, stop func(), stopped <-chan error) error {
	w.limiter.Close()
	w.slots.Close()
	stop()
	ctx, cancel := context.WithTimeout(ctx, w.Grace+drainMargin)
	defer cancel()
	var g errgroup.Group
	g.Go(func() error { return w.locker.Close(ctx) })
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
		if !redisx.Pause(ctx, redisRetryDelay) {
			return context.Cause(ctx)
		}
	}
}
