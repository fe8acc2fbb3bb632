package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"lockstep/events/stream"
	"lockstep/internal/config"
	"lockstep/internal/redisx"
	"lockstep/internal/server"
	"lockstep/internal/state"
	"lockstep/internal/telemetry"
	"lockstep/internal/watch"
	"lockstep/locking"
)

func newServeCommand(std streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the service",
		Long: "Run one process of the service until SIGTERM. Start as many as you like on one Redis and one volume.\n" +
			"Without --redis an embedded Redis is used: for trying out, alone, and gone with the process.",
		Example: "  lockstep serve --redis redis://127.0.0.1:6379 --root /srv/repos\n" +
			"  lockstep serve --roles receiver --listen 127.0.0.1:8080 --redis redis://127.0.0.1:6379",
		Args: wrongUse(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := settings(cmd, std)
			if err != nil {
				return err
			}
			return serve(cmd.Context(), cfg, newLogger(std.stderr, cfg, slog.LevelInfo))
		},
	}
	config.AddFlags(cmd.Flags(), config.Common|config.Working|config.Serving)
	return cmd
}

func serve(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	switch {
	case cfg.Listen == "" && len(cfg.Roles) == 1 && cfg.Has(config.RoleReceiver):
		return usageError(errors.New("nothing to do: the receiver role wants --listen"))
	case cfg.Redis == "" && !cfg.Has(config.RoleWorker):
		return usageError(errors.New("a process without a worker wants --redis: nobody else reads an embedded one"))
	}
	redisServer, closeRedis, err := openRedis(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer closeRedis()
	process := workerConfig{Config: cfg, Redis: redisServer, Log: log, Metrics: telemetry.New()}
	g, ctx := errgroup.WithContext(ctx)
	// HTTP outlives the worker, so that its drain can be watched.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	if cfg.Listen != "" {
		listener, err := net.Listen("tcp", cfg.Listen)
		if err != nil {
			return fmt.Errorf("listen: %w; choose another address with --listen", err)
		}
		log.InfoContext(ctx, "listening", "address", listener.Addr().String())
		g.Go(func() error { return listen(serving, ctx, listener, process) })
	}
	if cfg.Has(config.RoleWorker) {
		g.Go(func() error {
			defer stopServing()
			for {
				err := work(ctx, process)
				if ctx.Err() != nil || !redisx.Unavailable(err) {
					return err
				}
				log.WarnContext(ctx, "redis went away while the worker started; starting it again", "error", err)
				select {
				case <-ctx.Done():
				case <-time.After(redisPause):
				}
			}
		})
	} else {
		context.AfterFunc(ctx, stopServing)
	}
	if cfg.Has(config.RoleScheduler) {
		g.Go(func() error { return scheduling(ctx, process) })
	}
	if cfg.Has(config.RoleNotifier) {
		g.Go(func() error { return notifying(ctx, process) })
	}
	err = g.Wait()
	if errors.Is(err, context.Canceled) {
		return nil // told to stop before Redis came
	}
	return err
}

// openRedis is the Redis that is named, or an embedded one.
func openRedis(ctx context.Context, cfg config.Config, log *slog.Logger) (redisx.Server, func(), error) {
	if cfg.Redis != "" {
		server, err := cfg.RedisServer()
		return server, func() {}, err
	}
	embedded, err := redisx.StartEmbedded()
	if err != nil {
		return redisx.Server{}, nil, err
	}
	log.WarnContext(ctx, "no --redis is named: using an embedded one, whose data is gone with this process", "redis", embedded.String())
	return embedded.Server, embedded.Close, nil
}

// listen serves HTTP until ctx is done. It is not ready any more once running is.
func listen(ctx, running context.Context, listener net.Listener, cfg workerConfig) error {
	client := cfg.Redis.Open()
	defer client.Close()
	inspector, err := locking.NewInspector(locking.InspectorConfig{Redis: client, Prefix: cfg.Namespace().Locks()})
	if err != nil {
		return err
	}
	namespace := cfg.Namespace()
	dead, err := stream.NewDeadLetters(stream.DeadLettersConfig{Redis: client, Prefix: string(namespace), Dead: namespace.Dead()})
	if err != nil {
		return err
	}
	figures := telemetry.NewStreams(client, string(namespace), namespace.Changes(), namespace.Results())
	cfg.Metrics.Export(figures)
	waiters := cfg.Redis.Open() // of its own: who waits for a result keeps a connection busy
	defer waiters.Close()
	tracker, err := stream.NewTracker(trackerConfig(waiters, namespace))
	if err != nil {
		return err
	}
	var hooks *hookReceiver
	if cfg.Has(config.RoleReceiver) {
		if hooks, err = openHooks(cfg); err != nil {
			return err
		}
	}
	if hooks != nil {
		defer hooks.Close()
	}
	httpConfig := server.Config{
		Changes: tracker, Repos: state.NewStore(client, namespace),
		Locks: inspector, Dead: dead, Streams: figures, Watches: watch.NewRegistry(client, namespace),
		Topic: cfg.Namespace().Changes(), Token: cfg.APIToken(), Metrics: cfg.Metrics.Handler(), Log: cfg.Log,
		Ready: func(ctx context.Context) error {
			if running.Err() != nil {
				return errors.New("this process is stopping")
			}
			if err := client.Ping(ctx).Err(); err != nil && !hooks.spools() { // or webhooks would be sent nowhere
				return fmt.Errorf("redis at %s does not answer", cfg.Redis)
			}
			return nil
		},
	}
	if hooks != nil {
		httpConfig.Hooks = &hooks.http
		defer hooks.drain(ctx)()
	}
	if cfg.Has(config.RoleReceiver) {
		publisher, err := stream.NewPublisher(stream.PublisherConfig{Redis: client})
		if err != nil {
			return err
		}
		httpConfig.Publisher = publisher
	}
	return server.Serve(ctx, listener, httpConfig)
}
