package demo

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/internal/app"
	"lockstep/internal/term"
)

// Options configures the demo.
type Options struct {
	Duration time.Duration // how long to push; 0: until ctx is done
	Web      string        // address of the dashboard; optional
	Keep     bool          // keep the files afterwards
	Out      term.Output
}

// Defaults and limits of the demonstration.
const (
	DefaultAddress = "127.0.0.1:0" // address of the dashboard for --web without a value
	Longest        = 24 * time.Hour
	stepTimeout    = 5 * time.Minute  // per step; steps take seconds on an idle machine
	sceneLength    = 20 * time.Second // time between kills, unless the duration is shorter
)

// Run runs the demonstration in a temporary directory.
func (f *Options) Run(ctx context.Context, std term.Streams) error {
	ctx, stop := closedTerminal(ctx)
	defer stop()
	dir, err := os.MkdirTemp("", "lockstep-demo-")
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil { // TMPDIR may be relative, and the workers run elsewhere
		return err
	}
	view := newLiveView(std)
	defer view.Close()
	if f.Keep {
		view.event("keeping everything in %s", dir)
	} else {
		defer os.RemoveAll(dir)
	}
	defer context.AfterFunc(ctx, view.Close)() // after an interrupt, events are plain lines

	until := ctx
	if f.Duration == 0 { // an interrupt is the normal end
		ctx = context.WithoutCancel(ctx)
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer handleSecondInterrupt(until, fail)()
	report, err := f.run(ctx, until, &demo{dir: dir, fail: fail, std: std, view: view})
	if err != nil {
		return cmp.Or(context.Cause(ctx), err) // report the cause, not the errors that the cancellation led to
	}
	view.Close()
	if err := f.Out.Show(std, report, report.Table); err != nil {
		return err
	}
	if !report.AsPromised {
		return errors.New("demo: a guarantee was violated; see the table")
	}
	return nil
}

// closedTerminal returns a context that SIGHUP cancels like an interrupt, so that the demo deletes its files.
func closedTerminal(ctx context.Context) (context.Context, context.CancelFunc) {
	if signal.Ignored(syscall.SIGHUP) { // by nohup
		return ctx, func() {}
	}
	return signal.NotifyContext(ctx, syscall.SIGHUP)
}

// handleSecondInterrupt cancels the shutdown at a second signal, which would otherwise kill the process before it deletes its
// directory. It ignores further signals.
func handleSecondInterrupt(interrupted context.Context, fail context.CancelCauseFunc) (stop func()) {
	again, over := make(chan os.Signal, 1), make(chan struct{})
	forget := context.AfterFunc(interrupted, func() {
		signal.Notify(again, os.Interrupt, syscall.SIGTERM)
		select {
		case <-again:
			fail(errors.New("demo: interrupted twice"))
		case <-over:
		}
	})
	return func() { forget(); close(over) }
}

// run ends the demo early when until is done, and aborts it when ctx is done.
func (f *Options) run(ctx, until context.Context, d *demo) (summary, error) {
	if err := d.open(ctx); err != nil {
		return summary{}, err
	}
	defer d.Close()
	background, stopBackground := context.WithCancel(ctx)
	var tasks errgroup.Group
	defer func() { stopBackground(); _ = tasks.Wait() }() // d.fail has the errors
	tasks.Go(func() error { return d.failing(d.follow(background)) })
	tasks.Go(func() error { d.view.Run(background, d.frame, d.line); return nil })
	tasks.Go(func() error { return d.failing(d.followLeases(background)) })
	if f.Web != "" {
		if err := d.openWeb(background, f.Web, &tasks); err != nil {
			return summary{}, err
		}
	}

	for range 2 {
		if err := d.startWorker(ctx); err != nil {
			return summary{}, err
		}
	}
	if err := d.watchAll(ctx); err != nil {
		return summary{}, err
	}
	reading, stopReading := context.WithCancel(background)
	defer stopReading()
	for range readerCount {
		tasks.Go(func() error { d.readTrees(reading); return nil })
	}
	if err := d.act(ctx, until, f.Duration); err != nil {
		return summary{}, err
	}
	d.view.event("no more pushes: %d were made, %.0f %% of them to %s", d.board.pushes(), d.board.hotShare(), hotRepo)
	if err := d.settled(ctx); err != nil {
		return summary{}, err
	}
	stopReading()
	if err := d.stopWorkers(ctx); err != nil {
		return summary{}, err
	}
	return d.report(ctx)
}

// act pushes while it runs the scenes.
func (d *demo) act(ctx, until context.Context, duration time.Duration) error {
	pushing, stop := context.WithCancel(until)
	defer stop()
	var g errgroup.Group
	g.Go(func() error {
		defer stop()
		return d.push(ctx, pushing.Done())
	})
	err := d.runScenes(ctx, pushing, duration)
	stop()
	return cmp.Or(err, g.Wait())
}

// runScenes runs scenes until the duration ends. In each, it kills a worker, starts another and force-pushes.
func (d *demo) runScenes(ctx, until context.Context, duration time.Duration) error {
	scenes, length := max(1, int(duration/sceneLength)), sceneLength
	if duration > 0 {
		length = duration / time.Duration(scenes)
	}
	for scene := 0; duration == 0 || scene < scenes; scene++ {
		end := time.Now().Add(length)
		if !app.Sleep(until, length/4) {
			return nil
		}
		if killed, err := d.killHolder(ctx, until); !killed || err != nil {
			return err
		}
		if !app.Sleep(until, length/10) {
			return nil
		}
		if err := d.startWorker(ctx); err != nil {
			return err
		}
		if !app.Sleep(until, length/5) {
			return nil
		}
		if err := d.rewrite(ctx); err != nil {
			return err
		}
		if !app.Sleep(until, time.Until(end)) {
			return nil
		}
	}
	return nil
}
