package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/config"
	"lockstep/internal/credential"
	"lockstep/internal/egress"
	"lockstep/internal/execute"
	"lockstep/internal/notify"
	"lockstep/internal/watch"
)

// Commands returns the commands of the setting exec by app, "" for that of a follower.
func Commands(cfg config.Config, following bool) (map[string]execute.Command, error) {
	commands := map[string]execute.Command{}
	for app, words := range cfg.Commands() {
		if following != (app == "") {
			return nil, invalid(fmt.Errorf("exec: %q is for %s; want APP=COMMAND to serve, and COMMAND to follow",
				strings.Join(words, " "), cmp.Or(app, "no app")))
		}
		command, err := execute.New(words, cfg.ExecTimeout, os.Environ())
		if err != nil {
			return nil, invalid(config.Named(fmt.Errorf("exec: %w", err)))
		}
		commands[app] = command
	}
	return commands, nil
}

var errNotMounted = errors.New("not the deployment's volume, in whose trees a notifier runs the commands of exec: " +
	"mount it, for example by running the roles worker and notifier in one process")

// isMounted returns errNotMounted if cfg.Root is not the deployment's volume.
func isMounted(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
	vol, err := ViewVolume(ctx, cfg, client)
	if err == nil && vol == nil {
		err = fmt.Errorf("root %s is %w", cfg.Root, errNotMounted)
	}
	return err
}

// runNotifier posts results to apps until ctx is done, then finishes posts in flight within the grace period.
func runNotifier(ctx context.Context, cfg Config) error {
	client := cfg.Redis.Open()
	defer client.Close()
	namespace := cfg.Namespace()
	trust, err := egress.NewTrust(cfg.CAFile)
	if err != nil {
		return err
	}
	mounted := func(ctx context.Context) error { return isMounted(ctx, cfg.Config, client) }
	if len(cfg.commands) > 0 && !cfg.Has(config.RoleWorker) { // a worker creates the volume, or fails
		if err := mounted(ctx); errors.Is(err, errNotMounted) && client.Exists(ctx, namespace.Volume()).Val() > 0 {
			return err
		}
	}
	hb := cfg.health.heartbeat(notifierHandler)
	reader := cfg.Redis.With(heartbeatHook{hb}).Open() // blocks for up to a second at a time
	defer reader.Close()
	notifier, err := notify.New(notify.Config{
		Redis: client, Reader: reader, Namespace: namespace,
		Registry: watch.NewRegistry(client, namespace), Secrets: credential.NewStore(cfg.Credentials, os.Getenv),
		Commands: cfg.commands, Root: cfg.Root, Mounted: mounted,
		Hosts: cfg.NotifyHosts, Trust: trust, UserAgent: "lockstep/" + ReadBuild().Version,
		Grace: max(cfg.Grace, 1), Log: cfg.Log, Observe: cfg.Metrics.Notification, Tracer: cfg.Traces.Tracer("notifier"),
	})
	if err != nil {
		return err
	}
	defer cfg.Metrics.Outbox(func() (int64, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		return notify.Waiting(ctx, client, namespace)
	})()
	hb.running()
	defer hb.notReady(errEnded)
	notifier.Run(ctx)
	return nil
}
