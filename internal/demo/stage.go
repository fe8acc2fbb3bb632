package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/gitserver"
	"lockstep/internal/redisx"
	"lockstep/internal/telemetry"
	"lockstep/internal/term"
	"lockstep/internal/watch"
	"lockstep/locking"
)

const (
	repoCount       = 8
	fileCount       = 40 // per repository
	hotRepo         = "demo/hot"
	forcePushedRepo = "demo/sample-3"
	remoteLatency   = 50 * time.Millisecond // delay of each response of the Git server, to simulate a remote one
)

// watchingApps watch the hot repository, each with its own token. The first also watches all others.
var watchingApps = []string{"search", "docs"}

type demo struct {
	dir  string
	std  term.Streams
	view *liveView
	fail context.CancelCauseFunc // aborts the demonstration

	root    string
	git     *gitserver.Server
	redis   redisx.Server
	client  redis.UniversalClient
	lease   time.Duration // of workers
	locks   *locking.Inspector
	onFetch chan func() // see beforeAnswer
	tokens  []string    // of watchingApps
	shut    []func()

	board   *board
	workers workerSet
	heads   heads
}

// open creates the sample repositories and starts the Git server and Redis. The caller must call Close if err is nil.
func (d *demo) open(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	began := time.Now()
	d.root, d.onFetch = filepath.Join(d.dir, "volume"), make(chan func())
	if d.git, err = gitserver.Start(filepath.Join(d.dir, "remote"), gitserver.WithBefore(d.beforeAnswer)); err != nil {
		return fmt.Errorf("start the sample Git server: %w", err)
	}
	d.shut = append(d.shut, d.git.Close)
	embedded, err := redisx.StartEmbedded()
	if err != nil {
		return err
	}
	d.redis, d.client = embedded.Server, patient(embedded.Open())
	d.shut = append(d.shut, embedded.Close, func() { _ = d.client.Close() })
	if d.locks, err = locking.NewInspector(locking.InspectorConfig{Redis: d.client, Prefix: events.DefaultNamespace.Locks()}); err != nil {
		return err
	}
	names := []string{hotRepo}
	for i := 1; i < repoCount; i++ {
		names = append(names, fmt.Sprintf("demo/sample-%d", i))
	}
	d.board = newBoard(names)
	d.view.event("to watch from another terminal: lockstep status --redis %s", d.redis)
	if err := d.writeTokens(); err != nil {
		return err
	}
	for _, name := range names {
		if err := d.create(ctx, name); err != nil {
			return err
		}
	}
	d.lease = max(minLease, min(time.Since(began).Round(time.Second/10), maxLease))
	return nil
}

// patient raises the client's timeouts, because the embedded Redis is as slow as this process.
func patient(client redis.UniversalClient) redis.UniversalClient {
	if c, ok := client.(*redis.Client); ok {
		return c.WithTimeout(stepTimeout)
	}
	return client
}

// Close stops everything that open and startWorker started, in reverse order.
func (d *demo) Close() {
	d.workers.killAll()
	for len(d.shut) > 0 {
		last := len(d.shut) - 1
		d.shut[last]()
		d.shut = d.shut[:last]
	}
}

// config returns the settings for the demonstration's Redis.
func (d *demo) config() config.Config {
	return config.Config{Redis: d.redis.String(), Prefix: string(events.DefaultNamespace)}
}

// failing aborts the demonstration if a background task fails.
func (d *demo) failing(err error) error {
	if err != nil && !errors.Is(err, context.Canceled) {
		d.fail(err)
	}
	return err
}

// writeTokens creates a credential for each app and makes the hot repository require one.
func (d *demo) writeTokens() error {
	for _, app := range watchingApps {
		dir, token := filepath.Join(d.credentials(), app), rand.Text()
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		for name, text := range map[string]string{"username": app, "password": token, "urls": strings.TrimSuffix(d.git.URL("demo/"), ".git")} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				return err
			}
		}
		d.tokens = append(d.tokens, token)
	}
	d.git.AcceptTokens(hotRepo, d.tokens...)
	return nil
}

func (d *demo) credentials() string { return filepath.Join(d.dir, "credentials") }

// credentialFor returns the credential with which an app reads a repository.
func credentialFor(repo, app string) string {
	if repo == hotRepo {
		return app
	}
	return "" // public
}

// appsOf returns the apps that watch a repository.
func appsOf(repo string) []string {
	if repo == hotRepo {
		return watchingApps
	}
	return watchingApps[:1]
}

// beforeAnswer runs before each answer of the Git server. During a fetch of the hot repository it runs a pending onFetch function.
func (d *demo) beforeAnswer(ctx context.Context, repo, service string) {
	if repo == hotRepo && service == "git-upload-pack" {
		select {
		case fn := <-d.onFetch:
			fn()
		default:
		}
	}
	app.Sleep(ctx, remoteLatency)
}

// watchAll adds all watches and waits until the repositories are cloned.
func (d *demo) watchAll(ctx context.Context) error {
	registry := watch.NewRegistry(d.client, events.DefaultNamespace)
	began := time.Now()
	for _, repo := range d.board.repos {
		for _, app := range appsOf(repo.name) {
			w, err := watch.New(watch.Watch{App: app, URL: d.git.URL(repo.name), Credential: credentialFor(repo.name, app)})
			if err != nil {
				return err
			}
			if _, err := registry.Put(ctx, w); err != nil {
				return err
			}
		}
	}
	d.view.event("app %s watches %d repositories; app %s watches %s too, with another token", watchingApps[0], repoCount, watchingApps[1], hotRepo)
	published := func() (bool, error) {
		for _, repo := range d.board.repos {
			if _, err := os.Stat(filepath.Join(d.root, repo.name)); err != nil {
				return false, nil
			}
		}
		return true, nil
	}
	if err := d.await(ctx, published, "cloned"); err != nil {
		return err
	}
	d.view.event("all of them cloned after %.1f s", time.Since(began).Seconds())
	return nil
}

// settled waits until every change has its result and no worker has pending entries.
func (d *demo) settled(ctx context.Context) error {
	began, left := time.Now(), d.board.unsettled()
	all := func() (bool, error) {
		if d.board.unsettled() > 0 {
			return false, nil
		}
		namespace := events.DefaultNamespace
		changes, err := stream.Stats(ctx, d.client, string(namespace), namespace.Changes())
		group, _ := changes.Group(events.WorkersGroup)
		return group.Pending == 0, err
	}
	if err := d.await(ctx, all, "settled"); err != nil {
		return err
	}
	if left > 0 {
		d.view.event("the last %d changes settled %.1f s later", left, time.Since(began).Seconds())
	}
	return nil
}

// await polls until done returns true.
func (d *demo) await(ctx context.Context, done func() (bool, error), what string) error {
	for began := time.Now(); ; {
		ok, err := done()
		switch {
		case ok || err != nil:
			return err
		case time.Since(began) > stepTimeout:
			return fmt.Errorf("demo: not everything is %s after %v; use --keep and check the workers' logs", what, stepTimeout)
		case !app.Sleep(ctx, 20*time.Millisecond):
			return context.Cause(ctx)
		}
	}
}

// openWeb serves HTTP like lockstep serve, with a token that only the event shows.
func (d *demo) openWeb(ctx context.Context, address string, tasks *errgroup.Group) error {
	token := rand.Text()
	cfg, err := config.Load(nil, os.DevNull, []string{config.EnvPrefix + "REDIS=" + d.redis.String(), config.EnvPrefix + "API_TOKEN=" + token})
	if err != nil {
		return err
	}
	cfg.Root, cfg.Roles, cfg.Listen = d.root, []string{config.RoleWorker}, address // the dashboard reads the volume
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w; choose another address with --web=ADDRESS", err)
	}
	log := slog.New(slog.NewTextHandler(d.view.lines("web"), &slog.HandlerOptions{Level: slog.LevelError}))
	tasks.Go(func() error {
		return d.failing(app.ServeHTTP(ctx, listener, app.Config{Config: cfg, Redis: d.redis, Log: log, Metrics: telemetry.New()}))
	})
	d.view.event("dashboard at http://%s/", listener.Addr()) // the terminal cuts long lines
	d.view.event("log in with %s to make changes", token)
	return nil
}
