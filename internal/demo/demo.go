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
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/internal/app"
	"lockstep/internal/term"
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
)

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
	d := &demo{dir: dir, root: filepath.Join(dir, "volume"), std: std, fail: fail, began: time.Now(), waiting: map[string]push{}}
	defer d.close()
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

// say prints an event.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.std.Stderr, "%7.2fs  %s\n", time.Since(d.began).Seconds(), term.Clean(fmt.Sprintf(format, args...)))
}

// run ends the demo early when until is done, and aborts it when ctx is done.
func (d *demo) run(ctx, until context.Context, o *Options) error {
	if err := d.open(ctx); err != nil {
		return err
	}
	background, stop := context.WithCancel(ctx)
	defer func() { stop(); d.tasks.Wait() }()
	d.start(func() error { return d.countResults(background) })
	if o.Web != "" {
		if err := d.openWeb(background, o.Web); err != nil {
			return err
		}
	}
	for range 2 {
		if err := d.startWorker(ctx); err != nil {
			return err
		}
	}
	if err := d.watchAll(ctx); err != nil {
		return err
	}
	for range readerCount {
		d.start(func() error { d.readTrees(background); return nil })
	}
	if err := d.act(ctx, until, o.Duration); err != nil {
		return err
	}
	began := time.Now()
	if err := d.await(ctx, "settled", d.settled); err != nil {
		return err
	}
	d.say("no more pushes; all changes settled %.1f s later", time.Since(began).Seconds())
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
	began := time.Now()
	app.Sleep(pushing, min(cmp.Or(duration, stepTimeout)/4, 5*time.Second))
	err := d.killHolder(ctx, pushing)
	if err == nil {
		err = d.startWorker(ctx)
	}
	if err == nil {
		err = d.push(ctx, d.repos[forcePushed], d.repos[forcePushed].first)
		d.say("force-pushed to %s: its history is rewritten", d.repos[forcePushed].name)
	}
	switch {
	case err != nil:
	case duration > 0:
		app.Sleep(pushing, time.Until(began.Add(duration)))
	default:
		<-pushing.Done()
	}
	stop()
	return cmp.Or(err, g.Wait())
}
