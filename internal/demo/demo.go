// Package demo runs lockstep demo: a Git server with sample repositories, an embedded Redis and worker processes.
//
// It pushes mostly to one hot repository, kills a worker while it fetches that repository under its lease,
// force-pushes to another repository and reads every published tree throughout. The report compares what it
// counted with the guarantees.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/redisx"
	"lockstep/internal/term"
	"lockstep/locking"
)

// Options configures the demo.
type Options struct {
	Duration time.Duration // how long to push
	// address of the dashboard; optional. With it, an interrupt ends the demo early instead of aborting it
	Web string
	Out term.Output
}

// Limits and constants of the demonstration.
const (
	Longest     = 24 * time.Hour  // maximum of Options.Duration
	stepTimeout = 5 * time.Minute // per step; steps take seconds on an idle machine

	repoCount     = 8
	hotRepo       = "demo/hot"
	remoteLatency = 50 * time.Millisecond // delay of each response of the Git server, to simulate a remote one
	lease         = 5 * time.Second       // short, so that the successor of a killed worker is seen soon
)

type demo struct {
	dir, root string // root is the volume
	std       term.Streams
	began     time.Time
	tasks     *errgroup.Group // in the background; an error of one aborts the demonstration

	git      *gitserver.Server
	hang     chan struct{} // received by the next fetch of the hot repository, which then hangs until its worker is killed
	redis    redisx.Server
	client   redis.UniversalClient
	locks    *locking.Inspector
	workers  []*worker     // all that were ever started
	takeover time.Duration // from the kill of a worker to its successor's lease

	repos     []*sampleRepo // the hot one first
	mu        sync.Mutex    // guards what follows, and counters of repos
	published map[string]*push
}

// Run runs the demonstration in a temporary directory. It prints events on standard error and the report on
// standard output.
func (o *Options) Run(ctx context.Context, std term.Streams) error {
	dir, err := os.MkdirTemp("", "lockstep-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	until := ctx
	if o.Web != "" {
		ctx = context.WithoutCancel(ctx)
	}
	d := &demo{
		dir: dir, root: filepath.Join(dir, "volume"), std: std, began: time.Now(), hang: make(chan struct{}),
		published: map[string]*push{},
	}
	if err := d.run(ctx, until, o); err != nil {
		return cmp.Or(context.Cause(ctx), err) // report the cause, not the errors that the cancellation led to
	}
	report := d.report()
	if err := o.Out.Show(std, report, report.Table); err != nil {
		return err
	}
	if !report.AsPromised {
		return errors.New("demo: a guarantee was violated; see the table")
	}
	return nil
}

// run ends the demo early when until is done, and aborts it when ctx is done.
func (d *demo) run(ctx, until context.Context, o *Options) (err error) {
	if d.git, err = gitserver.Start(filepath.Join(d.dir, "remote"), gitserver.WithBefore(d.beforeResponse)); err != nil {
		return fmt.Errorf("start the sample Git server: %w", err)
	}
	defer d.git.Close()
	embedded, err := redisx.StartEmbedded()
	if err != nil {
		return err
	}
	defer embedded.Close()
	d.redis, d.client = embedded.Server, embedded.Open()
	if c, ok := d.client.(*redis.Client); ok {
		d.client = c.WithTimeout(stepTimeout) // the embedded Redis is as slow as this process
	}
	defer d.client.Close()
	d.locks = locking.NewInspector(d.client, events.DefaultNamespace.Locks())
	d.say("to watch from another terminal: lockstep status --redis %s", d.redis)
	if err := d.createRepos(ctx); err != nil {
		return err
	}

	d.tasks, ctx = errgroup.WithContext(ctx)
	background, stop := context.WithCancel(ctx)
	defer func() { stop(); err = cmp.Or(d.tasks.Wait(), err) }()
	d.tasks.Go(func() error { return d.countResults(background) })
	if o.Web != "" {
		if err := d.openWeb(background, o.Web); err != nil {
			return err
		}
	}
	for range 2 {
		if err := d.startWorker(background); err != nil {
			return err
		}
	}
	if err := d.await(ctx, "cloned", d.cloned); err != nil {
		return err
	}
	d.say("all of them cloned")
	d.tasks.Go(func() error { d.readTrees(background); return nil })
	if err := d.act(background, until, o.Duration); err != nil {
		return err
	}
	if err := d.await(ctx, "settled", d.settled); err != nil {
		return err
	}
	return d.stopWorkers(ctx)
}

// beforeResponse is called before each response of the Git server.
func (d *demo) beforeResponse(ctx context.Context, repo, service string) {
	if repo == hotRepo && service == "git-upload-pack" {
		select {
		case <-d.hang:
			<-ctx.Done()
		default:
		}
	}
	redisx.Pause(ctx, remoteLatency)
}

// act pushes until the duration has ended and a killed worker was replaced by another, or until is done.
func (d *demo) act(background, until context.Context, duration time.Duration) error {
	end := time.Now().Add(duration)
	pushing, stop := context.WithCancel(until)
	defer stop()
	g, ctx := errgroup.WithContext(background)
	context.AfterFunc(ctx, stop)
	g.Go(func() error { return d.pushAll(ctx, pushing) })
	g.Go(func() error {
		defer stop()
		redisx.Pause(pushing, min(duration/4, 5*time.Second))
		killed, err := d.killHolder(ctx, pushing)
		if err != nil || killed.IsZero() {
			return err
		}
		if err := d.startWorker(background); err != nil {
			return err
		}
		if err := d.awaitTakeover(ctx, killed); err != nil {
			return err
		}
		redisx.Pause(pushing, time.Until(end))
		return nil
	})
	return g.Wait()
}

// say prints an event.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.std.Stderr, "%7.2fs  %s\n", time.Since(d.began).Seconds(), term.Clean(fmt.Sprintf(format, args...)))
}

// await polls until done returns true.
func (d *demo) await(ctx context.Context, what string, done func() bool) error {
	for began := time.Now(); !done(); {
		if time.Since(began) > stepTimeout {
			return fmt.Errorf("demo: not everything is %s after %v", what, stepTimeout)
		}
		if !redisx.Pause(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	return nil
}
