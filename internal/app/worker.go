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
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/handlers"
	"lockstep/internal/app/backend"
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
	"lockstep/router/observe"
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

	Step     func(name string)     // see [volume.Config]; optional
	Progress func(events.Progress) // called with the progress of each job; optional
}

// RunWorker handles changes until ctx is done, then drains. It waits if Redis is unavailable at the start.
func RunWorker(ctx context.Context, cfg Config) error {
	name := cfg.Worker
	if name == "" {
		name = NewWorkerName()
	}
	log := cfg.Log.With("worker", name)
	namespace := cfg.Namespace()

	grace := max(cfg.Grace, 1) // 0 would select the default
	commands := cfg.Redis.Open()
	defer commands.Close()
	volumeConfig := VolumeConfig(cfg.Config)
	volumeConfig.Results, volumeConfig.Step = ResultWatermarks(commands, namespace), cfg.Step
	volumeConfig.Net.Log = log
	prepares := newPreparer(log)
	if !cfg.NoPrepare && cfg.TreePrepare > 0 {
		volumeConfig.Replaced = prepares.add
	}
	volume, err := volume.OpenVolume(cfg.Root, volumeConfig)
	if err != nil {
		return err
	}
	defer volume.Close()
	cfg.health.volumeOpened(volume.ID())
	hb := cfg.health.heartbeat(changesHandler)
	hb.notReady(errWaitingRedis)
	claim := func() error { return ClaimVolume(ctx, commands, namespace, volume) }
	if err := awaitRedis(ctx, cfg.Redis, log, claim); err != nil {
		return err
	}
	hb.notReady(errStarting)

	pubsub := cfg.Redis.Open()
	defer pubsub.Close()
	locker, err := locking.New(locking.Config{
		Redis: commands, PubSub: pubsub, Prefix: namespace.Locks(),
		Lease: cfg.Lease, Wait: cfg.LockWait, Worker: name, Log: log, KeyName: "repo", Observer: cfg.Metrics.Locks(),
	})
	if err != nil {
		return err
	}
	trimmer, err := stream.NewTrimmer(retention(cfg, commands, log))
	if err != nil {
		return err
	}
	states := state.NewStore(commands, namespace)
	reporter := state.NewReporter(commands, namespace, name, log)
	getenv := os.Getenv
	if cfg.follow != nil {
		getenv = cfg.follow.variables(getenv)
	}
	credentials := credential.NewStore(cfg.Credentials, getenv, credential.WithTransport(volume.Transport()))
	handle := backend.New(volume, states, credentials, watch.NewRegistry(commands, namespace))
	handle.Log = log
	var subscriber *stream.Subscriber
	wake := func(ctx context.Context, waiters []hosts.Waiter) ([]bool, error) {
		return wakeChanges(ctx, subscriber, namespace, waiters)
	}
	waker := cellWaker{
		directory: cfg.cells, subscribers: map[cells.Member]*stream.Subscriber{},
		config: stream.SubscriberConfig{Redis: commands, Reader: commands, Group: events.WorkersGroup, Consumer: name, Log: log},
	}
	if cfg.cells != nil {
		wake = waker.wake
	}
	budgets, err := hostBudgets(cfg, commands, name, log, wake)
	if err != nil {
		return err
	}
	limits := backend.Hosts{Budgets: budgets}
	handle.Hosts = limits
	circuit := handlers.Circuit{
		Store: backend.Circuits{Store: states}, Policy: handlers.CircuitPolicy{Failures: cfg.CircuitFailures, Open: cfg.CircuitOpen}, Log: log,
		Observe: func(to handlers.CircuitPhase) { cfg.Metrics.Circuit(state.CircuitPhase(to)) },
	}
	changes := router.Changes{
		Namespace: namespace, Source: "/lockstep/worker/" + name, Handler: circuit.Wrap(handle.Handle),
		Floor: volume.Floor, Limited: limits.Limited, Notes: state.FailureNotes(namespace), Log: log,
	}
	slots := router.NewSlots(cfg.Slots)
	prepares.volume, prepares.locker, prepares.slots = volume, locker, slots
	subscriber, err = stream.NewSubscriber(stream.SubscriberConfig{
		Redis: commands, Reader: cfg.Redis.Open(), Prefix: string(namespace), Dead: namespace.Dead(),
		Group: events.WorkersGroup, Consumer: name, Visibility: cfg.Lease, Grace: grace, Key: changes.Key, Room: func() int { hb.beat(); return slots.Room() },
		Log: log, Observer: cfg.Metrics.Stream(),
	})
	if err != nil {
		return err
	}
	route := router.Route{
		Name: "changes", Topic: namespace.Changes(), Subscriber: subscriber, Handler: changes.Handle,
		Admit: changes.Admit, Locker: locker, Request: changes.Request, Slots: slots,
		Observer: &observe.Observer{Tracer: cfg.Traces.Tracer("worker"), Events: cfg.observe(reporter)},
		Dispose: router.Disposer{
			Failed: changes.Failed, OnGiveUp: changes.OnGiveUp, Note: changes.Note, Log: log,
			Retry: router.Retry{MaxAttempts: cfg.MaxAttempts, Base: cfg.RetryBase, Max: cfg.RetryMax, MaxAge: cfg.MaxAge},
		},
	}
	if cfg.cells != nil {
		if err := cfg.cells.Register(ctx, cfg.Cell, "", volume.ID()); err != nil {
			return err
		}
		forwarder := cells.Forwarder{Directory: cfg.cells, Cell: cfg.Cell, Keep: 2 * cfg.MaxAge}
		changes.Elsewhere, changes.Handler = forwarder.Forward, circuit.Wrap(forwarder.Renaming(handle.Handle))
		route.Forward, route.Forwarded = changes.Forward, changes.OnForward
	}
	r, err := router.New(router.Config{Log: log, CloseTimeout: cfg.Grace + drainMargin, Routes: []router.Route{route}})
	if err != nil {
		return err
	}

	maintaining, stopMaintaining := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() { trimmer.Run(maintaining) })
	background.Go(func() { prepares.Run(maintaining) })
	damage := replacer{
		volume: volume, locker: locker, states: states, source: changes.Source, log: log,
		publish: func(ctx context.Context, c events.Change) error { return PublishChange(ctx, commands, namespace, c) },
	}
	maintainVolume(maintaining, &background, cfg, damage, commands, name)
	if cfg.cells != nil {
		m := moves{cfg: cfg, worker: name, redis: commands, pubsub: pubsub, volume: volume, locker: locker, fetch: damage.requestOf, wake: waker.wakeMoved, log: log}
		background.Go(func() {
			if err := m.run(maintaining); err != nil {
				log.ErrorContext(ctx, "moves between cells do not run", "error", err)
			}
		})
	}
	draining, stopDraining := context.WithCancel(context.WithoutCancel(ctx)) // ends after the drain
	background.Go(func() { reporter.Run(draining) })
	background.Go(func() { budgets.Run(draining) })
	defer cfg.Metrics.Volume(volumeFigures(volume))()
	defer background.Wait()
	defer stopDraining()
	defer stopMaintaining()

	stopped := make(chan error, 1)
	running, stopRouter := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRouter()
	go func() { stopped <- router.Run(running, r) }()
	stop := func(err error) error {
		return fmt.Errorf("router: %w", errors.Join(err, subscriber.Close(), locker.Close(context.WithoutCancel(ctx))))
	}
	select {
	case <-r.Running():
		hb.running()
		log.InfoContext(ctx, "worker takes changes", "root", volume.Root(), "slots", cfg.Slots)
	case err := <-stopped: // could not subscribe
		return stop(err)
	case <-ctx.Done():
	}
	select {
	case <-ctx.Done():
		hb.notReady(errDraining)
		log.InfoContext(ctx, "worker draining", "grace", cfg.Grace)
	case err := <-stopped:
		return stop(err)
	}
	return Drain(context.WithoutCancel(ctx), cfg.Grace, stopRouter, locker, slots, stopped)
}

// maintainVolume patrols, syncs and compares the volume until ctx is done.
func maintainVolume(ctx context.Context, background *sync.WaitGroup, cfg Config, damage replacer, commands redis.UniversalClient, worker string) {
	namespace, volume := cfg.Namespace(), damage.volume
	background.Go(func() {
		patrol{
			volume: volume, locker: damage.locker, redis: commands, key: namespace.Patrol(), worker: worker, interval: cfg.PatrolEvery, log: damage.log, freed: cfg.Metrics.Freed,
		}.Run(ctx)
	})
	background.Go(func() { syncer{volume: volume, replacer: damage, log: damage.log}.Run(ctx) })
	if cfg.PatrolRate == 0 {
		return
	}
	background.Go(func() {
		comparer{
			trees: volume.NewComparer(cfg.PatrolRate), replacer: damage, redis: commands, key: namespace.Compare(), worker: worker,
			interval: cfg.PatrolEvery, altered: cfg.Metrics.Altered,
		}.Run(ctx)
	})
}

// retention returns how much of each stream to keep.
func retention(cfg Config, client redis.UniversalClient, log *slog.Logger) stream.TrimmerConfig {
	namespace, maxLen := cfg.Namespace(), int64(cfg.StreamMaxLength)
	return stream.TrimmerConfig{
		Redis: client, Prefix: string(namespace), Log: log, Observe: cfg.Metrics.Trim,
		Streams: []stream.Retention{
			{Topic: namespace.Changes(), MaxLen: maxLen},
			{Topic: namespace.Results(), MaxLen: maxLen, Keep: cfg.ResultsKeep, Age: 24 * time.Hour},
		},
		Dead: namespace.Dead(), DeadAge: cfg.DeadMaxAge, DeadLen: int64(cfg.DeadMaxLength), DeadBytes: cfg.DeadMaxBytes,
	}
}

// Drain stops the router, whose end stopped reports, and waits up to the grace period for jobs in flight. Changes waiting for a lease or a slot return to the stream at once.
func Drain(ctx context.Context, grace time.Duration, stop func(), locker *locking.Locker, slots *router.Slots, stopped <-chan error) error {
	slots.Close()
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
