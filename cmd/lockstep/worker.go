package main

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
	"lockstep/internal/config"
	"lockstep/internal/credential"
	"lockstep/internal/git/checkout"
	"lockstep/internal/git/wire"
	"lockstep/internal/redisx"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
	"lockstep/locking"
	"lockstep/router"
)

// workers is the consumer group of those who work on changes.
const workers = "workers"

// workerConfig is what a worker needs beside its settings.
type workerConfig struct {
	config.Config
	Redis   redisx.Server
	Log     *slog.Logger
	Metrics *telemetry.Metrics
	Traces  *telemetry.Traces // nil: there are none

	hooks       *hookReceiver  // takes webhooks; nil: nobody does
	vitals      *vitals        // told how its parts are; nil: nobody asks
	live, ready *server.Health // what is made of that

	step     func(name string)     // see volume.Config; nil: nobody is told
	progress func(events.Progress) // told how far each job is; nil: nobody is
}

// work takes changes and works on them until ctx is done, then drains: what is in flight finishes
// within the grace, and the rest goes back to the stream at once. Redis may come late.
func work(ctx context.Context, cfg workerConfig) error {
	name := cfg.Worker
	if name == "" {
		name = workerName()
	}
	log := cfg.Log.With("worker", name)
	namespace := cfg.Namespace()

	grace := max(cfg.Grace, 1) // zero would be the default to those who get it
	commands := cfg.Redis.Open()
	defer commands.Close()
	volumeConfig := volumeConfig(cfg.Config)
	volumeConfig.Results, volumeConfig.Step = resultsOf(commands, namespace), cfg.step
	volume, err := volume.OpenVolume(cfg.Root, volumeConfig)
	if err != nil {
		return err
	}
	defer volume.Close()
	cfg.vitals.opened(volume.ID())
	p := cfg.vitals.of(changesHandler)
	p.rests(errAwaiting)
	claim := func() error { return claimVolume(ctx, commands, namespace, volume) }
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
	handle := handlers.Handlers{
		Repos:       volume,
		States:      states,
		Credentials: credential.NewStore(cfg.Credentials, os.Getenv, credential.WithTransport(volume.Transport())),
		Watches:     watch.NewRegistry(commands, namespace),
	}
	circuit := handlers.Circuit{
		States: states, Policy: state.CircuitPolicy{Failures: cfg.CircuitFailures, Open: cfg.CircuitOpen},
		Log: log, Observe: cfg.Metrics.Circuit,
	}
	changes := router.Changes{
		Namespace: namespace, Source: "/lockstep/worker/" + name, Handler: circuit.Wrap(handle.Handle),
		Floor: volume.Floor, Log: log, Observe: cfg.Metrics.Change,
		Begin: cfg.begin(reporter), Timed: timed(cfg.Metrics),
		Worked: func(w router.Work) { cfg.Metrics.Worked(w.Operation, w.Took, w.Received, w.Err) },
	}
	slots := router.NewSlots(cfg.Slots)
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{
		Redis: commands, Reader: cfg.Redis.Open(), Prefix: string(namespace), Dead: namespace.Dead(),
		Group: workers, Consumer: name, Visibility: cfg.Lease, Grace: grace, Key: changes.Key, Room: beating(p, slots.Room),
		Log: log, Observer: cfg.Metrics.Stream(),
	})
	if err != nil {
		return err
	}
	r, err := router.New(router.Config{
		Log: log, CloseTimeout: cfg.Grace + drainMargin,
		Routes: []router.Route{{
			Name: "changes", Topic: namespace.Changes(), Subscriber: subscriber, Handler: changes.Handle,
			Locker: locker, Request: changes.Request, Slots: slots, Tracer: cfg.Traces.Tracer("worker"),
			Dispose: router.Disposer{
				Failed: changes.Failed, GivenUp: changes.GivenUp, Log: log,
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
		}.run(trimming)
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
	return drain(context.WithoutCancel(ctx), cfg.Grace, r, locker, slots, stopped)
}

// begin tells of a job both the reporter and whoever else is to know.
func (cfg workerConfig) begin(reporter *state.Reporter) func(events.Job) (func(events.Progress), func()) {
	if cfg.progress == nil {
		return reporter.Begin
	}
	return func(job events.Job) (func(events.Progress), func()) {
		progress, end := reporter.Begin(job)
		return func(p events.Progress) { progress(p); cfg.progress(p) }, end
	}
}

// volumeConfig is what the settings say of the volume.
func volumeConfig(cfg config.Config) volume.Config {
	return volume.Config{
		Grace: max(cfg.TreeGrace, 1), KeepNamed: max(cfg.TreeKeep, 1), ReuseTrees: cfg.TreeReuse, Links: checkout.LinkPolicy(cfg.OutsideLinks),
		MaxTreeFiles: cfg.MaxTreeFiles, MaxTreeBytes: cfg.MaxTreeBytes, MaxFileBytes: cfg.MaxFileBytes,
		MaxPackBytes: cfg.MaxPackBytes, MaxInflatedBytes: cfg.MaxInflatedBytes, FetchTimeout: cfg.FetchTimeout,
		MaxRepoBytes: cfg.MaxRepoBytes, MaxVolumeBytes: cfg.MaxVolumeBytes, MinFreeBytes: cfg.MinFreeBytes, RefuseClones: !cfg.Adopt,
		Net: wire.Config{Hosts: cfg.Hosts, Proxy: cfg.Proxy, CAFile: cfg.CAFile, KnownHosts: cfg.KnownHosts},
	}
}

// resultsOf tells the volume how far consumers have settled the stream of results.
func resultsOf(client redis.UniversalClient, namespace events.Namespace) func(context.Context) (volume.Horizon, error) {
	return func(ctx context.Context) (volume.Horizon, error) {
		h, err := stream.ReadHorizon(ctx, client, namespace.Results())
		return volume.Horizon(h), err
	}
}

// retention is how much of the streams is kept.
func retention(cfg workerConfig, client redis.UniversalClient, log *slog.Logger) stream.TrimmerConfig {
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

// drain lets what is being worked on finish within the grace. What only waits, for a lease or for a
// slot, goes back to the stream at once.
func drain(ctx context.Context, grace time.Duration, r *message.Router, locker *locking.Locker, slots *router.Slots, stopped <-chan error) error {
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

func workerName() string {
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
			return redisError(server, err)
		case !waiting:
			waiting = true
			log.ErrorContext(ctx, "waiting for redis", "error", redisError(server, err))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(redisPause):
		}
	}
}

// claimVolume makes sure that all workers of one deployment publish to the same volume.
func claimVolume(ctx context.Context, client redis.UniversalClient, namespace events.Namespace, volume *volume.Volume) error {
	if err := client.SetNX(ctx, namespace.Volume(), volume.ID(), 0).Err(); err != nil {
		return err
	}
	id, err := client.Get(ctx, namespace.Volume()).Result()
	if err != nil {
		return err
	}
	if id != volume.ID() {
		return fmt.Errorf("root %s is volume %s, and workers under prefix %s publish to volume %s: mount that one, "+
			"choose another --prefix, or, if that volume is gone for good, delete the key %s",
			volume.Root(), volume.ID(), namespace, id, namespace.Volume())
	}
	return nil
}
