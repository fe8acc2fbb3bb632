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
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
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
	repoCount     = 8
	fileCount     = 40 // per repository
	hotRepo       = "demo/hot"
	watchingApp   = "docs"
	forcePushed   = 3                     // index of the repository that is force-pushed
	remoteLatency = 50 * time.Millisecond // delay of each response of the Git server, to simulate a remote one
)

type demo struct {
	dir, root string // root is the volume
	std       term.Streams
	fail      context.CancelCauseFunc // aborts the demonstration
	began     time.Time
	tasks     sync.WaitGroup

	git    *gitserver.Server
	redis  redisx.Server
	client redis.UniversalClient
	lease  time.Duration // of workers
	locks  *locking.Inspector
	shut   []func()

	repos    []*sampleRepo // the hot one first
	workers  []*worker     // all that were ever started
	takeover time.Duration // from the kill of a worker to its successor's lease

	mu                       sync.Mutex      // guards what follows
	waiting                  map[string]push // without a result, by the change's id
	pushes                   int
	results, doubled, failed int
	reads, torn              int
}

// sampleRepo is a sample repository.
type sampleRepo struct {
	name  string
	first string // commit

	pushing sync.Mutex // guards head and pushes
	head    string     // last pushed commit
	pushes  int

	// demo.mu guards these.
	commits   map[string]int  // push number by commit
	latencies []time.Duration // from push to result
}

// open creates the sample repositories and starts the Git server and Redis.
func (d *demo) open(ctx context.Context) (err error) {
	began := time.Now()
	delay := func(ctx context.Context, _, _ string) { app.Sleep(ctx, remoteLatency) }
	if d.git, err = gitserver.Start(filepath.Join(d.dir, "remote"), gitserver.WithBefore(delay)); err != nil {
		return fmt.Errorf("start the sample Git server: %w", err)
	}
	d.shut = append(d.shut, d.git.Close)
	embedded, err := redisx.StartEmbedded()
	if err != nil {
		return err
	}
	d.redis, d.client = embedded.Server, embedded.Open()
	if c, ok := d.client.(*redis.Client); ok {
		d.client = c.WithTimeout(stepTimeout) // the embedded Redis is as slow as this process
	}
	d.shut = append(d.shut, embedded.Close, func() { _ = d.client.Close() })
	if d.locks, err = locking.NewInspector(locking.InspectorConfig{Redis: d.client, Prefix: events.DefaultNamespace.Locks()}); err != nil {
		return err
	}
	d.say("to watch from another terminal: lockstep status --redis %s", d.redis)
	for i := range repoCount {
		name := hotRepo
		if i > 0 {
			name = fmt.Sprintf("demo/sample-%d", i)
		}
		commit, err := d.git.Create(ctx, name, contents(name, 0))
		if err != nil {
			return err
		}
		d.repos = append(d.repos, &sampleRepo{name: name, first: commit, head: commit, commits: map[string]int{commit: 0}})
	}
	d.lease = max(minLease, min(time.Since(began).Round(time.Second/10), maxLease))
	return nil
}

// close stops everything that open and startWorker started, in reverse order.
func (d *demo) close() {
	for _, w := range d.running() {
		w.kill()
	}
	for len(d.shut) > 0 {
		last := len(d.shut) - 1
		d.shut[last]()
		d.shut = d.shut[:last]
	}
}

// start runs a background task, whose error aborts the demonstration.
func (d *demo) start(task func() error) {
	d.tasks.Go(func() {
		if err := task(); err != nil && !errors.Is(err, context.Canceled) {
			d.fail(err)
		}
	})
}

// watchAll adds all watches and waits until the repositories are cloned.
func (d *demo) watchAll(ctx context.Context) error {
	registry := watch.NewRegistry(d.client, events.DefaultNamespace)
	for _, repo := range d.repos {
		w, err := watch.New(watch.Watch{App: watchingApp, URL: d.git.URL(repo.name)})
		if err != nil {
			return err
		}
		if _, err := registry.Put(ctx, w); err != nil {
			return err
		}
	}
	d.say("app %s watches %d repositories", watchingApp, repoCount)
	err := d.await(ctx, "cloned", func() bool {
		for _, repo := range d.repos {
			if _, err := os.Stat(filepath.Join(d.root, repo.name)); err != nil {
				return false
			}
		}
		return true
	})
	if err == nil {
		d.say("all of them cloned")
	}
	return err
}

// await polls until done returns true.
func (d *demo) await(ctx context.Context, what string, done func() bool) error {
	for began := time.Now(); !done(); {
		if time.Since(began) > stepTimeout {
			return fmt.Errorf("demo: not everything is %s after %v", what, stepTimeout)
		}
		if !app.Sleep(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// openWeb serves HTTP like lockstep serve, with a token that only the event shows.
func (d *demo) openWeb(ctx context.Context, address string) error {
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
	log := slog.New(slog.NewTextHandler(d.std.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	d.start(func() error {
		return app.ServeHTTP(ctx, listener, app.Config{Config: cfg, Redis: d.redis, Log: log, Metrics: telemetry.New()})
	})
	d.say("dashboard at http://%s/", listener.Addr())
	d.say("log in with %s to make changes", token)
	return nil
}
