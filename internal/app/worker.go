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
	"lockstep/internal/app/backend"
	"lockstep/internal/config"
	"lockstep/internal/credential"
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

// Config is what a worker needs beside its settings.
type Config struct {
	config.Config
	Redis   redisx.Server
	Log     *slog.Logger
	Metrics *telemetry.Metrics
	Traces  *telemetry.Traces // nil: there are none

	hooks       *hookReceiver  // takes webhooks; nil: nobody does
	vitals      *vitals        // told how its parts are; nil: nobody asks
	live, ready *server.Health // what is made of that

	Step     func(name string)     // see volume.Config; nil: nobody is told
	Progress func(events.Progress) // called with the progress of each job; optional
}

// Work takes changes and works on them until ctx is done, then drains: what is in flight finishes
// within the grace, and the rest goes back to the stream at once. Redis may come late.
func Work(ctx context.Context, cfg Config) error {
	name := cfg.Worker
	if name == "" {
		name = WorkerName()
	}
	log := cfg.Log.With("worker", name)
	namespace := cfg.Namespace()

	grace := max(cfg.Grace, 1) // zero would be the default to those who get it
	commands := cfg.Redis.Open()
	defer commands.Close()
	volumeConfig := VolumeConfig(cfg.Config)
	volumeConfig.Results, volumeConfig.Step = ResultsOf(commands, namespace), cfg.Step
	volume, err := volume.OpenVolume(cfg.Root, volumeConfig)
	if err != nil {
		return err
	}
	defer volume.Close()
	cfg.vitals.opened(volume.ID())
	p := cfg.vitals.of(changesHandler)
	p.rests(errAwaiting)
	claim := func() error { return ClaimVolume(ctx, commands, namespace, volume) }
	if err := awaitRedis(ctx, cfg.Redis, log, claim); err != nil {
		return err
	}
	p.rests(errStarting)

	pubsub := cfg.Redis.Open()
	defer pubsub.Close()
	locker, err := locking.New(locking.Config{
		Redis: commands, PubSub: pubsub, Prefix: namespace.Locks(),
		Lease: cfg.Lease, Wait: cfg.LockWait, Worker: name, Log: log, Observer: cfg.Metrics.Locks(),
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
	credentials := credential.NewStore(cfg.Credentials, os.Getenv, credential.WithTransport(volume.Transport()))
	handle := backend.New(volume, states, credentials, watch.NewRegistry(commands, namespace))
	circuit := handlers.Circuit{
		Store: backend.Circuits{Store: states}, Policy: handlers.CircuitPolicy{Failures: cfg.CircuitFailures, Open: cfg.CircuitOpen}, Log: log,
		Observe: func(to handlers.CircuitPhase) { cfg.Metrics.Circuit(state.CircuitPhase(to)) },
	}
	changes := router.Changes{
		Namespace: namespace, Source: "/lockstep/worker/" + name, Handler: circuit.Wrap(handle.Handle),
		Floor: volume.Floor, Log: log,
	}
	slots := router.NewSlots(cfg.Slots)
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Redis: commands, Reader: cfg.Redis.Open(), Prefix: string(namespace), Dead: namespace.Dead(),
		Group: events.WorkersGroup, Consumer: name, Visibility: cfg.Lease, Grace: grace, Key: changes.Key, Room: beating(p, slots.Room),
		Log: log, Observer: cfg.Metrics.Stream(),
	})
	if err != nil {
		return err
	}
	r, err := router.New(router.Config{
		Log: log, CloseTimeout: cfg.Grace + drainMargin,
		Routes: []router.Route{{
			Name: "changes", Topic: namespace.Changes(), Subscriber: subscriber, Handler: changes.Handle,
			Locker: locker, Request: changes.Request, Slots: slots,
			Observer: &observe.Observer{Tracer: cfg.Traces.Tracer("worker"), Events: cfg.observe(reporter)},
			Dispose: router.Disposer{
				Failed: changes.Failed, OnGiveUp: changes.OnGiveUp, Log: log,
				Retry: router.Retry{MaxAttempts: cfg.MaxAttempts, Base: cfg.RetryBase, Max: cfg.RetryMax, MaxAge: cfg.MaxAge},
			},
		}},
	})
	if err != nil {
		return err
	}

	trimming, stopTrimming := context.WithCancel(ctx)
	var trims sync.WaitGroup
	trims.Go(func() { trimmer.Run(trimming) })
	trims.Go(func() {
		patrol{
			volume: volume, locker: locker, redis: commands, key: namespace.Patrol(), worker: name, every: cfg.PatrolEvery, log: log, freed: cfg.Metrics.Freed,
		}.Run(trimming)
	})
	reporting, stopReporting := context.WithCancel(context.WithoutCancel(ctx)) // a drain is to be seen, too
	trims.Go(func() { reporter.Run(reporting) })
	defer cfg.Metrics.Volume(figuresOf(volume))()
	defer trims.Wait()
	defer stopReporting()
	defer stopTrimming()

	stopped := make(chan error, 1)
	go func() { stopped <- r.Run(context.WithoutCancel(ctx)) }()
	broken := func(err error) error {
		return fmt.Errorf("router: %w", errors.Join(err, subscriber.Close(), locker.Close(context.WithoutCancel(ctx))))
	}
	select {
	case <-r.Running():
		p.runs()
		log.InfoContext(ctx, "worker takes changes", "root", volume.Root(), "slots", cfg.Slots)
	case err := <-stopped: // it could not subscribe
		return broken(err)
	case <-ctx.Done():
	}
	select {
	case <-ctx.Done():
		p.rests(errDraining)
		log.InfoContext(ctx, "worker drains", "grace", cfg.Grace)
	case err := <-stopped:
		return broken(err)
	}
	return Drain(context.WithoutCancel(ctx), cfg.Grace, r, locker, slots, stopped)
}

// retention is how much of the streams is kept.
func retention(cfg Config, client redis.UniversalClient, log *slog.Logger) stream.TrimmerConfig {
	namespace, maxLen := cfg.Namespace(), int64(cfg.StreamMaxLength)
	return stream.TrimmerConfig{
		Redis: client, Prefix: string(namespace), Log: log, Observe: cfg.Metrics.Trim,
		Streams: []stream.Retention{
			{Topic: namespace.Changes(), MaxLen: maxLen},
			{Topic: namespace.Results(), MaxLen: maxLen, Keep: cfg.ResultsKeep, Age: 24 * time.Hour},
		},
		Dead: namespace.Dead(), DeadAge: cfg.DeadMaxAge, DeadLen: int64(cfg.DeadMaxLength),
	}
}

// Drain lets what is being worked on finish within the grace. What only waits, for a lease or for a
// slot, goes back to the stream at once.
func Drain(ctx context.Context, grace time.Duration, r *message.Router, locker *locking.Locker, slots *router.Slots, stopped <-chan error) error {
	slots.Close()
	ctx, cancel := context.WithTimeout(ctx, grace+drainMargin)
	defer cancel()
	var g errgroup.Group
	g.Go(func() error { return locker.Close(ctx) })
	g.Go(r.Close)
	g.Go(func() error { return <-stopped })
	if err := g.Wait(); err != nil {
		return fmt.Errorf("drain: %w; what was not given back goes to others when its lease lapses", err)
	}
	return nil
}

// drainMargin is what a drain takes beyond the grace: to give back what has not finished.
const drainMargin = 5 * time.Second

func WorkerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), watermill.NewShortUUID())
}

// redisPause is how long a Redis that cannot serve is left alone before the next try.
const redisPause = 500 * time.Millisecond

// awaitRedis returns once Redis has done what try asks of it, or refuses to. It says once that Redis
// cannot be used, and once that it can.
func awaitRedis(ctx context.Context, server redisx.Server, log *slog.Logger, try func() error) error {
	waiting := false
	for {
		err := try()
		switch {
		case err == nil:
			if waiting {
				log.InfoContext(ctx, "redis answers", "redis", server.String())
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
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(redisPause):
		}
	}
}
