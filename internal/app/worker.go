package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/handlers"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/credential"
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

	follow      *FollowConfig    // nil unless this process follows a reader
	cells       *cells.Directory // nil without cells; closeCells closes its client
	closeCells  func() error
	hooks       *hookReceiver  // nil if this process receives no webhooks
	health      *health        // nil outside Serve
	live, ready *server.Health // checks of health

	NoPrepare bool // prepare no trees for later pushes

	Step func(name string) // see [volume.Config]; optional
}

// RunWorker handles changes until ctx is done, then drains. It waits if Redis is unavailable at the start.
func RunWorker(ctx context.Context, cfg Config) error {
	if cfg.Worker == "" {
		cfg.Worker = NewWorkerName()
	}
	cfg.Log = cfg.Log.With("worker", cfg.Worker)
	commands := cfg.Redis.Open()
	defer commands.Close()
	slots := volume.NewSlots(cfg.Slots)
	prepares := newPreparer(slots, cfg.Log)
	volume, err := openVolume(cfg, commands, prepares, slots)
	if err != nil {
		return err
	}
	defer volume.Close()
	hb := cfg.health.heartbeat(changesHandler)
	hb.notReady(errWaitingRedis)
	claim := func() error { return ClaimVolume(ctx, commands, cfg.Namespace(), volume) }
	if err := awaitRedis(ctx, cfg.Redis, cfg.Log, claim); err != nil {
		return err
	}
	hb.notReady(errStarting)

	pubsub := cfg.Redis.Open()
	defer pubsub.Close()
	locker, err := locking.New(locking.Config{
		Redis: commands, PubSub: pubsub, Prefix: cfg.Namespace().Locks(),
		Lease: cfg.Lease, Wait: cfg.LockWait, Worker: cfg.Worker, Log: cfg.Log, KeyName: "repo",
		Observer: cfg.Metrics.Locks(),
	})
	if err != nil {
		return err
	}
	w := &worker{
		cfg: cfg, commands: commands, pubsub: pubsub, volume: volume, locker: locker, heartbeat: hb, prepares: prepares,
		slots:    slots,
		states:   state.NewStore(commands, cfg.Namespace()),
		reporter: state.NewReporter(commands, cfg.Namespace(), cfg.Worker, cfg.Log),
	}
	r, err := w.open(ctx)
	if err != nil {
		return err
	}
	stop, err := w.startBackground(ctx)
	if err != nil {
		return err
	}
	defer stop()
	return w.run(ctx, r)
}

// worker is a worker of changes, and what its parts share.
type worker struct {
	cfg       Config // with a name and the worker's logger
	commands  redis.UniversalClient
	pubsub    redis.UniversalClient
	volume    *volume.Volume
	locker    *locking.Locker
	heartbeat *heartbeat
	prepares  *preparer
	slots     *volume.Slots
	states    *state.Store
	reporter  *state.Reporter

	// Set by open.
	changes    *handlers.Changes
	subscriber *stream.Subscriber
	limiter    *hosts.Limiter
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

// open returns the router of changes.
func (w *worker) open(ctx context.Context) (r *message.Router, err error) {
	cfg, namespace := w.cfg, w.cfg.Namespace()
	w.changes = &handlers.Changes{
		Namespace: namespace, Source: "/lockstep/worker/" + cfg.Worker, Floor: w.volume.Floor,
		Observe: cfg.observe(w.reporter), Log: cfg.Log,
	}
	w.subscriber, err = stream.NewSubscriber(stream.SubscriberConfig{
		Client: w.commands, Reader: cfg.Redis.Open(), Prefix: string(namespace), Dead: namespace.Dead(),
		// 0 would select the default
		ConsumerGroup: events.WorkersGroup, Consumer: cfg.Worker, MaxIdleTime: cfg.Lease, Grace: max(cfg.Grace, 1),
		Key: w.changes.Key, Beside: w.changes.Beside, Room: func() int { w.heartbeat.beat(); return w.slots.Room() },
		Log: cfg.Log, Observer: cfg.Metrics.Stream(),
	}, nil)
	if err != nil {
		return nil, err
	}
	if w.limiter, err = newLimiter(cfg, w.commands); err != nil {
		return nil, err
	}
	handle := w.handlers()
	w.changes.Limiter, w.changes.States, w.changes.Watches = w.limiter, w.states, handle.Watches
	backoff := handlers.Backoff{
		Store: w.states, Retry: w.retry(), Open: 3 * cfg.Lease, Log: cfg.Log, Observe: cfg.Metrics.Circuit,
	}
	route := w.route()
	if cfg.cells == nil {
		w.changes.Handler = backoff.Wrap(handle.Handle)
	} else {
		if err := cfg.cells.Register(ctx, cfg.Cell, "", w.volume.ID()); err != nil {
			return nil, err
		}
		forwarder := cells.Forwarder{Directory: cfg.cells, Cell: cfg.Cell, Keep: 2 * maxAge}
		w.changes.Elsewhere, w.changes.Handler = forwarder.Forward, backoff.Wrap(renaming(cfg, handle.Handle))
		route.Before = append([]message.HandlerMiddleware{w.changes.Forward}, route.Before...)
	}
	return router.New(router.Config{Log: cfg.Log, CloseTimeout: cfg.Grace + drainMargin, Routes: []router.Route{route}})
}

// handlers returns the handlers of changes.
func (w *worker) handlers() *handlers.Handlers {
	getenv := os.Getenv
	if w.cfg.follow != nil {
		getenv = w.cfg.follow.variables(getenv)
	}
	return &handlers.Handlers{
		Volume: w.volume, States: w.states, Log: w.cfg.Log,
		Watches:     watch.NewRegistry(w.commands, w.cfg.Namespace()),
		Credentials: credential.NewStore(w.cfg.Credentials, getenv, credential.WithTransport(w.volume.Transport())),
	}
}

// route returns the route of changes in a deployment without cells.
func (w *worker) route() router.Route {
	cfg := w.cfg
	return router.Route{
		Name: "changes", Topic: cfg.Namespace().Changes(), Subscriber: w.subscriber, Handler: w.changes.Handle,
		Before: []message.HandlerMiddleware{w.changes.Limit}, Locker: w.locker, Request: w.changes.Request,
		Tracer:  cfg.Traces.Tracer("worker"),
		Dispose: w.changes.Dispose(w.retry()),
	}
}

func (w *worker) retry() router.Retry {
	return router.Retry{MaxAttempts: w.cfg.MaxAttempts, Base: w.cfg.Lease / 10, Max: 30 * w.cfg.Lease, MaxAge: maxAge}
}

// startBackground starts what runs beside the router until ctx is done. stop ends it, after the drain, and
// waits for it.
func (w *worker) startBackground(ctx context.Context) (stop func(), err error) {
	cfg, log := w.cfg, w.cfg.Log
	trimmer, err := stream.NewTrimmer(retention(cfg, w.commands, log))
	if err != nil {
		return nil, err
	}
	maintaining, stopMaintaining := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() { trimmer.Run(maintaining) })
	w.prepares.volume, w.prepares.locker = w.volume, w.locker
	background.Go(func() { w.prepares.Run(maintaining) })
	background.Go(func() {
		gc{
			volume: w.volume, locker: w.locker, redis: w.commands, key: cfg.Namespace().GC(), worker: cfg.Worker,
			interval: gcInterval(cfg.TreeGrace), log: log, freed: cfg.Metrics.Freed,
		}.Run(maintaining)
	})
	if cfg.cells != nil {
		m := moves{
			cfg: cfg, worker: cfg.Worker, redis: w.commands, pubsub: w.pubsub, volume: w.volume, locker: w.locker, log: log,
		}
		background.Go(func() {
			if err := m.run(maintaining); err != nil {
				log.ErrorContext(ctx, "moves between cells do not run", "error", err)
			}
		})
	}
	draining, stopDraining := context.WithCancel(context.WithoutCancel(ctx)) // ends after the drain
	background.Go(func() { w.reporter.Run(draining) })
	unexportVolume, unexportHosts := cfg.Metrics.Volume(volumeFigures(w.volume)), cfg.Metrics.Limiter(w.limiter.Load)
	return func() {
		stopMaintaining()
		stopDraining()
		background.Wait()
		unexportVolume()
		unexportHosts()
	}, nil
}

// run runs the router until ctx is done, then drains.
func (w *worker) run(ctx context.Context, r *message.Router) error {
	stopped := make(chan error, 1)
	running, stopRouter := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRouter()
	go func() { stopped <- router.Run(running, r) }()
	stop := func(err error) error {
		return fmt.Errorf("router: %w", errors.Join(err, w.subscriber.Close(), w.locker.Close(context.WithoutCancel(ctx))))
	}
	select {
	case <-r.Running():
		w.heartbeat.running()
		w.cfg.Log.InfoContext(ctx, "worker takes changes", "root", w.volume.Root(), "slots", w.cfg.Slots)
	case err := <-stopped: // could not subscribe
		return stop(err)
	case <-ctx.Done():
	}
	select {
	case <-ctx.Done():
		w.heartbeat.notReady(errDraining)
		w.cfg.Log.InfoContext(ctx, "worker draining", "grace", w.cfg.Grace)
	case err := <-stopped:
		return stop(err)
	}
	return Drain(context.WithoutCancel(ctx), w.cfg.Grace, stopRouter, w.locker, stopped, w.limiter, w.slots)
}

const (
	maxAge     = 7 * 24 * time.Hour  // of a failing change, which then becomes a dead letter
	deadMaxAge = 30 * 24 * time.Hour // of a dead letter
)

// retention returns how much of each stream to keep.
func retention(cfg Config, client redis.UniversalClient, log *slog.Logger) stream.TrimmerConfig {
	namespace := cfg.Namespace()
	return stream.TrimmerConfig{
		Redis: client, Prefix: string(namespace), Log: log, Observe: cfg.Metrics.Trim,
		Streams: []stream.Retention{
			{Topic: namespace.Changes()},
			{Topic: namespace.Results(), Keep: cfg.ResultsKeep, Age: 24 * time.Hour},
		},
		Dead: namespace.Dead(), DeadAge: deadMaxAge,
	}
}

// Drain stops the router, whose end stopped reports, and waits up to the grace period for jobs in flight.
// Changes that wait for a host, a lease or a slot return to the stream at once.
func Drain(
	ctx context.Context, grace time.Duration, stop func(), locker *locking.Locker, stopped <-chan error,
	queues ...interface{ Close() },
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

// NewWorkerName returns a unique worker name with the host name and the process id.
func NewWorkerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), watermill.NewShortUUID())
}

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
