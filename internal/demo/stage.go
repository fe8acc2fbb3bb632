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
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/gitserver"
	"lockstep/internal/redisx"
	"lockstep/internal/telemetry"
	"lockstep/internal/watch"
	"lockstep/locking"
)

const (
	demoRepos   = 8
	demoFiles   = 40 // in each
	demoHot     = "demo/hot"
	demoRewrite = "demo/sample-3"
	demoLatency = 50 * time.Millisecond // of each answer of the Git server, which could be far away
)

// demoApps watch the hot repository, each with a token of its own; the first watches all the others too.
var demoApps = []string{"search", "docs"}

// demo is one run of the demonstration.
type demo struct {
	dir  string
	std  term.Streams
	view *demoView
	fail context.CancelCauseFunc // ends it

	root   string
	git    *gitserver.Server
	redis  redisx.Server
	client redis.UniversalClient
	lease  time.Duration // of the workers
	locks  *locking.Inspector
	trap   chan func() // see remote
	tokens []string    // of demoApps
	shut   []func()

	board *demoBoard
	staff demoStaff
	heads demoHeads
}

// open makes the sample repositories, and starts the Git server and Redis. The caller closes the demo,
// also after an error.
func (d *demo) open(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	began := time.Now()
	d.root, d.trap = filepath.Join(d.dir, "volume"), make(chan func())
	if d.git, err = gitserver.Start(filepath.Join(d.dir, "remote"), gitserver.WithBefore(d.remote)); err != nil {
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
	names := []string{demoHot}
	for i := 1; i < demoRepos; i++ {
		names = append(names, fmt.Sprintf("demo/sample-%d", i))
	}
	d.board = newDemoBoard(names)
	d.view.event("to look at it from another terminal: lockstep status --redis %s", d.redis)
	if err := d.writeTokens(); err != nil {
		return err
	}
	for _, name := range names {
		if err := d.create(ctx, name); err != nil {
			return err
		}
	}
	d.lease = max(demoLease, min(time.Since(began).Round(time.Second/10), demoLeaseAtMost))
	return nil
}

// patient is a client that waits for Redis as long as we do for all else: it is in this process, and slow when that is.
func patient(client redis.UniversalClient) redis.UniversalClient {
	if c, ok := client.(*redis.Client); ok {
		return c.WithTimeout(demoPatience)
	}
	return client
}

// Close ends what open and hire started, in the opposite order.
func (d *demo) Close() {
	d.staff.killAll()
	for len(d.shut) > 0 {
		last := len(d.shut) - 1
		d.shut[last]()
		d.shut = d.shut[:last]
	}
}

// config is how to publish to the demonstration's Redis.
func (d *demo) config() config.Config {
	return config.Config{Redis: d.redis.String(), Prefix: string(events.DefaultNamespace)}
}

// failing has an error of somebody backstage end the demonstration.
func (d *demo) failing(err error) error {
	if err != nil && !errors.Is(err, context.Canceled) {
		d.fail(err)
	}
	return err
}

// writeTokens gives each app a credential, and has the hot repository ask for one.
func (d *demo) writeTokens() error {
	for _, app := range demoApps {
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
	d.git.AcceptTokens(demoHot, d.tokens...)
	return nil
}

func (d *demo) credentials() string { return filepath.Join(d.dir, "credentials") }

// credentialFor is the name of the credential that an app reads a repository with.
func credentialFor(repo, app string) string {
	if repo == demoHot {
		return app
	}
	return "" // the others are open to all
}

// appsOf are the apps that watch a repository.
func appsOf(repo string) []string {
	if repo == demoHot {
		return demoApps
	}
	return demoApps[:1]
}

// remote is called before the Git server answers. When the trap is set, it is sprung by the next who fetches the
// hot repository, while that waits for its answer.
func (d *demo) remote(ctx context.Context, repo, service string) {
	if repo == demoHot && service == "git-upload-pack" {
		select {
		case spring := <-d.trap:
			spring()
		default:
		}
	}
	app.Sleep(ctx, demoLatency)
}

// watchAll has the apps watch the repositories, which has them cloned, and returns when they are.
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
	d.view.event("app %s watches %d repositories; app %s watches %s too, with another token", demoApps[0], demoRepos, demoApps[1], demoHot)
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

// settled returns when every change has its result, and nothing else is in a worker's hands: the first clones, and polls.
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

// await asks again and again whether it is done.
func (d *demo) await(ctx context.Context, done func() (bool, error), what string) error {
	for began := time.Now(); ; {
		ok, err := done()
		switch {
		case ok || err != nil:
			return err
		case time.Since(began) > demoPatience:
			return fmt.Errorf("demo: not everything is %s after %v; say --keep and look at what the workers logged", what, demoPatience)
		case !app.Sleep(ctx, 20*time.Millisecond):
			return context.Cause(ctx)
		}
	}
}

// openWeb serves HTTP as lockstep serve does, behind a token that is told here alone.
func (d *demo) openWeb(ctx context.Context, address string, crew *errgroup.Group) error {
	token := rand.Text()
	cfg, err := config.Load(nil, os.DevNull, []string{config.EnvPrefix + "REDIS=" + d.redis.String(), config.EnvPrefix + "API_TOKEN=" + token})
	if err != nil {
		return err
	}
	cfg.Root, cfg.Roles, cfg.Listen = d.root, []string{config.RoleWorker}, address // it has the volume at hand, as a worker
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w; choose another address with --web=ADDRESS", err)
	}
	log := slog.New(slog.NewTextHandler(d.view.lines("web"), &slog.HandlerOptions{Level: slog.LevelError}))
	crew.Go(func() error {
		return d.failing(app.ServeHTTP(ctx, listener, app.Config{Config: cfg, Redis: d.redis, Log: log, Metrics: telemetry.New()}))
	})
	d.view.event("dashboard at http://%s/ ; to release leases and retry letters there, log in with %s", listener.Addr(), token)
	return nil
}
