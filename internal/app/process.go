package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/changes"
	"lockstep/internal/config"
	"lockstep/internal/operate"
	"lockstep/internal/redisx"
	"lockstep/internal/server"
	"lockstep/internal/status"
	"lockstep/internal/telemetry"
)

// Serve runs the roles of a process until ctx is done, then drains. It returns nil after a clean stop. Of its
// configuration, Config and Log are required and Step is optional; it sets the other fields.
func Serve(ctx context.Context, process Config) error {
	cfg, log := process.Config, process.Log
	switch {
	case cfg.Listen == "" && cfg.HasOnly(config.RoleReceiver, config.RoleReader):
		return invalid(fmt.Errorf("nothing to do: the %s role requires %s", strings.Join(cfg.Roles, " or "),
			config.Names("listen")))
	case cfg.Redis == "" && !cfg.Has(config.RoleWorker):
		return invalid(fmt.Errorf("a process without the worker role requires %s: no other process can use an "+
			"embedded Redis", config.Names("redis")))
	}
	var err error
	if process.follow != nil || cfg.Has(config.RoleNotifier) { // others may not have the programs
		if process.commands, err = Commands(cfg, process.follow != nil); err != nil {
			return err
		}
	}
	redisServer, closeRedis, err := openRedis(ctx, process)
	if err != nil {
		return err
	}
	defer closeRedis()
	process.Redis, process.Metrics, process.Traces = redisServer, telemetry.New(), OpenTraces(ctx, log)
	defer process.Traces.Close()
	if cfg.Directory() != "" {
		if process, err = joinCell(ctx, process); err != nil {
			return err
		}
		cfg = process.Config
		defer func() { _ = process.closeCells() }()
	}
	if cfg.Listen != "" && cfg.Has(config.RoleReceiver) {
		if process.hooks, err = openHooks(process); err != nil {
			return err
		}
		defer process.hooks.Close()
	}
	public, admin, err := openListeners(cfg)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	// HTTP outlives the worker, so that health and metrics show its drain.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	pinged := redisServer.Open()
	defer pinged.Close()
	process.health = newHealth(process)
	process.health.export(process.Metrics)
	process.live, process.ready = healthChecks(ctx, process, pinged)
	if admin != nil {
		log.InfoContext(ctx, "listening for operators", "address", admin.Addr().String())
		g.Go(func() error { return serveAdmin(serving, admin, process) })
	}
	if public != nil {
		log.InfoContext(ctx, "listening", "address", public.Addr().String())
		g.Go(func() error { return ServeHTTP(serving, public, process) })
	}
	if process.cells != nil {
		g.Go(func() error { return process.cells.Run(serving, log) })
	}
	if socket := os.Getenv("NOTIFY_SOCKET"); socket != "" {
		notifier := systemdNotifier{
			socket: socket, watchdog: watchdogTimeout(os.Getenv), live: process.live, ready: process.ready, log: log,
		}
		g.Go(func() error { notifier.Run(serving, ctx); return nil })
	}
	startRoles(ctx, g, process, stopServing)
	err = g.Wait()
	if errors.Is(err, context.Canceled) {
		return nil // stopped before Redis was available
	}
	return err
}

// role is a part of a process that runs beside HTTP until ctx is done.
type role struct {
	name string // in health checks and metrics
	run  func(ctx context.Context, process Config) error
}

// rolesOf returns the roles of a process that are not served over HTTP.
func rolesOf(process Config) (roles []role) {
	for _, one := range []struct {
		role
		isOn bool
	}{
		{role{changesHandler, restartWorker}, process.Has(config.RoleWorker)},
		{role{schedulerHandler, runScheduler}, process.Has(config.RoleScheduler)},
		{role{notifierHandler, runNotifier}, process.Has(config.RoleNotifier)},
		{role{followerHandler, runFollower}, process.follow != nil},
	} {
		if one.isOn {
			roles = append(roles, one.role)
		}
	}
	return roles
}

// startRoles starts the roles. drained is called when no work is in flight any more.
func startRoles(ctx context.Context, g *errgroup.Group, process Config, drained func()) {
	if !process.Has(config.RoleWorker) {
		context.AfterFunc(ctx, drained)
	}
	for _, role := range rolesOf(process) {
		g.Go(func() error {
			if role.name == changesHandler {
				defer drained()
			}
			return role.run(ctx, process)
		})
	}
}

// restartWorker runs a worker, and starts another one if Redis becomes unavailable while it starts.
func restartWorker(ctx context.Context, process Config) error {
	for {
		err := RunWorker(ctx, process)
		if ctx.Err() != nil || !redisx.Unavailable(err) {
			return err
		}
		process.Log.WarnContext(ctx, "redis became unavailable while the worker started, restarting it", "error", err)
		redisx.Pause(ctx, redisRetryDelay)
	}
}

// openListeners opens the configured listeners, or none if one of them fails.
func openListeners(cfg config.Config) (public, admin net.Listener, err error) {
	if public, err = listen("listen", cfg.Listen); err != nil {
		return nil, nil, err
	}
	if admin, err = listen("admin-listen", cfg.AdminListen); err != nil && public != nil {
		_ = public.Close()
	}
	return public, admin, err
}

// listen returns nil if the address is empty.
func listen(setting, address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; choose another address with --%s", setting, err, setting)
	}
	return listener, nil
}

// openRedis returns the configured Redis, or starts an embedded one.
func openRedis(ctx context.Context, cfg Config) (redisx.Server, func(), error) {
	if cfg.Config.Redis != "" {
		server, err := cfg.RedisServer()
		return server, func() {}, err
	}
	embedded, err := redisx.StartEmbedded()
	if err != nil {
		return redisx.Server{}, nil, err
	}
	if cfg.follow == nil { // a follower lists everything again after a restart
		cfg.Log.WarnContext(ctx, "no --redis given, using an embedded one: its data is lost when this process ends",
			"redis", embedded.String())
	}
	return embedded.Server, embedded.Close, nil
}

// ServeHTTP serves the API, webhooks and dashboard until ctx is done.
func ServeHTTP(ctx context.Context, listener net.Listener, cfg Config) error {
	client := cfg.Redis.Open()
	defer client.Close()
	namespace, set := cfg.Namespace(), cellsOf(cfg, client)
	figures := streamMetrics(cfg, client)
	cfg.Metrics.Export(figures)
	limits := telemetry.NewHosts(ReadHosts(cfg.Config, client))
	cfg.Metrics.ExportHosts(limits)
	tracker := changes.NewTracker(client, namespace)
	httpConfig := server.Config{
		Topic: namespace.Changes(), TopicOf: topicOf(set), Slots: cfg.Slots, Token: cfg.APIToken, Proxies: cfg.Proxies(),
		Metrics: cfg.Metrics.Handler(), Log: cfg.Log,
		Live: cfg.live, Ready: cfg.ready, Tracer: cfg.Traces.Tracer("receiver"),
	}
	if cfg.Has(config.RoleReader) {
		tailing := cfg.Redis.Open() // not shared: it blocks in reads of results
		defer tailing.Close()
		var err error
		if httpConfig.Reading, err = openReading(ctx, cfg, client, tailing, listener); err != nil {
			return err
		}
		defer httpConfig.Reading.Close()
	}
	if cfg.HasOnly(config.RoleReader) || cfg.follow != nil {
		if httpConfig.Reading != nil {
			httpConfig.Reading.Repos = &operate.Repos{Cells: set}
		}
		return server.Serve(ctx, listener, httpConfig) // without the open endpoints, which name all repositories
	}
	httpConfig.Changes = changesOfAll{set, tracker, cells.Member{Name: cfg.Cell, Namespace: cfg.Namespace()}}
	httpConfig.Repos = &operate.Repos{Cells: set}
	httpConfig.Leases = &operate.Leases{Cells: set, Shared: true}
	httpConfig.Streams, httpConfig.Hosts = figures, limits
	shown := cfg.Config
	shown.Redis = cfg.Redis.String() // of an embedded one, the settings have none
	httpConfig.Verdict = status.Reader{Redis: client, Config: shown, Cells: set, Volume: ViewVolume}.Verdict
	httpConfig.Letters, httpConfig.Watches = &operate.Letters{Cells: set}, &operate.Watches{Cells: set}
	httpConfig.Outboxes, httpConfig.Workers = &operate.Outboxes{Cells: set}, &operate.Workers{Cells: set, Grace: cfg.Grace}
	httpConfig.Results = &operate.Results{Cells: set}
	if cfg.hooks != nil {
		httpConfig.Hooks = &cfg.hooks.http
		defer cfg.hooks.drainSpool(ctx, cfg.health.heartbeat(hooksHandler))()
	}
	if cfg.Has(config.RoleReceiver) {
		publisher, err := stream.NewPublisher(stream.PublisherConfig{Client: client}, nil)
		if err != nil {
			return err
		}
		httpConfig.Publisher = publisher
	}
	board, closeBoard, err := openDashboard(ctx, cfg, client, listener, httpConfig)
	if err != nil {
		return err
	}
	defer closeBoard()
	httpConfig.Dashboard = board
	return server.Serve(ctx, listener, httpConfig)
}

// serveAdmin serves profiles, metrics and health to operators until ctx is done.
func serveAdmin(ctx context.Context, listener net.Listener, cfg Config) error {
	if cfg.Listen == "" { // otherwise ServeHTTP exports them
		client := cfg.Redis.Open()
		defer client.Close()
		cfg.Metrics.Export(streamMetrics(cfg, client))
		cfg.Metrics.ExportHosts(telemetry.NewHosts(ReadHosts(cfg.Config, client)))
	}
	return server.ServeAdmin(ctx, listener, server.Config{
		Live: cfg.live, Ready: cfg.ready, Metrics: cfg.Metrics.Handler(), Token: cfg.APIToken, Log: cfg.Log,
	})
}

// streamMetrics reads the metrics of the deployment's streams.
func streamMetrics(cfg Config, client redis.UniversalClient) *telemetry.Streams {
	namespace := cfg.Namespace()
	streams := telemetry.NewStreams(client, string(namespace), namespace.Changes(), namespace.Results())
	streams.Slots = cfg.Slots
	return streams
}

func invalid(err error) error { return &config.InvalidError{Err: err} }
