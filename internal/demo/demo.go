// Package demo runs lockstep demo: a Git server with sample repositories, an embedded Redis and worker processes.
//
// It pushes mostly to one hot repository, kills a worker while it holds the hot repository's lease, force-pushes to another
// repository and reads every published tree throughout. The report compares what it counted with the guarantees.
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
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/redisx"
	"lockstep/internal/term"
	"lockstep/locking"
)

// Options configures the demo.
type Options struct {
	Duration time.Duration // how long to push; 0: until ctx is done
	Web      string        // address of the dashboard; optional
	Out      term.Output
}

// Defaults and limits of the demonstration.
const (
	DefaultAddress = "127.0.0.1:0" // address of the dashboard for --web without a value
	Longest        = 24 * time.Hour
	stepTimeout    = 5 * time.Minute // per step; steps take seconds on an idle machine

	repoCount     = 8
	hotRepo       = "demo/hot"
	forcePushed   = 3                     // index of the repository that is force-pushed
	remoteLatency = 50 * time.Millisecond // delay of each response of the Git server, to simulate a remote one
	lease         = 5 * time.Second       // short, so that the successor of a killed worker is seen soon
)

type demo struct {
	dir, root string // root is the volume
	std       term.Streams
	fail      context.CancelCauseFunc // aborts the demonstration
	began     time.Time
	tasks     sync.WaitGroup

	git      *gitserver.Server
	redis    redisx.Server
	client   redis.UniversalClient
	locks    *locking.Inspector
	workers  []*worker     // all that were ever started
	takeover time.Duration // from the kill of a worker to its successor's lease

	repos     []*sampleRepo // the hot one first
	mu        sync.Mutex    // guards what follows, and counters of repos
	published map[string]*push
}

// Run runs the demonstration in a temporary directory. It prints events on standard error and the report on standard output.
func (o *Options) Run(ctx context.Context, std term.Streams) error {
	dir, err := os.MkdirTemp("", "lockstep-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if dir, err = filepath.Abs(dir); err != nil { // TMPDIR may be relative, and the workers run elsewhere
		return err
	}
	until := ctx
	if o.Duration == 0 { // an interrupt is the normal end
		ctx = context.WithoutCancel(ctx)
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	d := &demo{dir: dir, root: filepath.Join(dir, "volume"), std: std, fail: fail, began: time.Now(), published: map[string]*push{}}
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
	delay := func(ctx context.Context, _, _ string) { app.Sleep(ctx, remoteLatency) }
	if d.git, err = gitserver.Start(filepath.Join(d.dir, "remote"), gitserver.WithBefore(delay)); err != nil {
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
	if d.locks, err = locking.NewInspector(locking.InspectorConfig{Redis: d.client, Prefix: events.DefaultNamespace.Locks()}); err != nil {
		return err
	}
	d.say("to watch from another terminal: lockstep status --redis %s", d.redis)
	if err := d.createRepos(ctx); err != nil {
		return err
	}

	background, stop := context.WithCancel(ctx)
	defer func() { stop(); d.tasks.Wait() }()
	defer func() {
		for _, w := range d.running() {
			w.kill()
		}
	}()
	d.start(func() error { return d.countResults(background) })
	if o.Web != "" {
		if err := d.openWeb(background, o.Web); err != nil {
			return err
		}
	}
	for range 2 {
		if err := d.startWorker(); err != nil {
			return err
		}
	}
	if err := d.await(ctx, "cloned", d.cloned); err != nil {
		return err
	}
	d.say("all of them cloned")
	for range readerCount {
		d.start(func() error { d.readTrees(background); return nil })
	}
	if err := d.act(ctx, until, o.Duration); err != nil {
		return err
	}
	d.say("no more pushes")
	if err := d.await(ctx, "settled", d.settled); err != nil {
		return err
	}
	return d.stopWorkers(ctx)
}

// act pushes until the duration ends. Meanwhile it kills a worker, starts another and force-pushes.
func (d *demo) act(ctx, until context.Context, duration time.Duration) error {
	pushing, stop := context.WithCancel(until)
	defer stop()
	var g errgroup.Group
	g.Go(func() error {
		defer stop()
		return d.pushAll(ctx, pushing.Done())
	})
	end := time.Now().Add(cmp.Or(duration, Longest))
	app.Sleep(pushing, min(time.Until(end)/4, 5*time.Second))
	err := d.killHolder(ctx, pushing)
	if err == nil {
		err = d.startWorker()
	}
	if err == nil {
		err = d.push(ctx, d.repos[forcePushed], d.repos[forcePushed].first)
		d.say("force-pushed to %s: its history is rewritten", d.repos[forcePushed].name)
	}
	if err == nil {
		app.Sleep(pushing, time.Until(end))
	}
	stop()
	return cmp.Or(err, g.Wait())
}

// say prints an event.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.std.Stderr, "%7.2fs  %s\n", time.Since(d.began).Seconds(), term.Clean(fmt.Sprintf(format, args...)))
}

// start runs a background task, whose error aborts the demonstration.
func (d *demo) start(task func() error) {
	d.tasks.Go(func() {
		if err := task(); err != nil && !errors.Is(err, context.Canceled) {
			d.fail(err)
		}
	})
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
