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
	"lockstep/internal/cli/term"
)

// Options say how the demonstration is given.
type Options struct {
	Duration time.Duration
	Web      string
	Keep     bool
	Out      term.Output
}

const (
	DefaultAddress = "127.0.0.1:0" // where the dashboard is when nobody says
	Longest        = 24 * time.Hour
	demoPatience   = 5 * time.Minute  // for what is a matter of seconds, unless others have the machine
	demoScene      = 20 * time.Second // the longest between two kills
)

// Run gives the demonstration in a folder of its own.
func (f *Options) Run(ctx context.Context, std term.Streams) error {
	dir, err := os.MkdirTemp("", "lockstep-demo-")
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil { // a TMPDIR may be relative, and the workers are elsewhere
		return err
	}
	view := newDemoView(std)
	defer view.Close()
	if f.Keep {
		view.event("keeping everything in %s", dir)
	} else {
		defer os.RemoveAll(dir)
	}
	defer context.AfterFunc(ctx, view.Close)() // what the end of it tells comes as lines

	until := ctx
	if f.Duration == 0 { // an interrupt is how it is meant to end
		ctx = context.WithoutCancel(ctx)
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer endTidily(until, fail)()
	report, err := f.give(ctx, until, &demo{dir: dir, fail: fail, std: std, view: view})
	if err != nil {
		return cmp.Or(context.Cause(ctx), err) // what ended it, not what was broken off by that
	}
	view.Close()
	if err := f.Out.Show(std, report, report.Table); err != nil {
		return err
	}
	if !report.AsPromised {
		return errors.New("demo: something is not as promised; see the table")
	}
	return nil
}

// endTidily has a second signal break off what is done at the first one. It would end the process at once, and nobody
// would delete the folder. Later ones have no effect.
func endTidily(interrupted context.Context, fail context.CancelCauseFunc) (stop func()) {
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

// give is the demonstration from beginning to end. It ends early when until is done, and breaks off when
// ctx is.
func (f *Options) give(ctx, until context.Context, d *demo) (demoReport, error) {
	if err := d.open(ctx); err != nil {
		return demoReport{}, err
	}
	defer d.Close()
	backstage, strike := context.WithCancel(ctx)
	var crew errgroup.Group
	defer func() { strike(); _ = crew.Wait() }() // whoever fails in it has told d.fail
	crew.Go(func() error { return d.failing(d.follow(backstage)) })
	crew.Go(func() error { d.view.Run(backstage, d.frame, d.line); return nil })
	crew.Go(func() error { return d.failing(d.lookAtLeases(backstage)) })
	if f.Web != "" {
		if err := d.openWeb(backstage, f.Web, &crew); err != nil {
			return demoReport{}, err
		}
	}

	for range 2 {
		if err := d.hire(ctx); err != nil {
			return demoReport{}, err
		}
	}
	if err := d.watchAll(ctx); err != nil {
		return demoReport{}, err
	}
	reading, stopReading := context.WithCancel(backstage)
	defer stopReading()
	for range demoReaders {
		crew.Go(func() error { d.Read(reading); return nil })
	}
	if err := d.perform(ctx, until, f.Duration); err != nil {
		return demoReport{}, err
	}
	d.view.event("no more pushes: %d were made, %.0f %% of them to %s", d.board.pushes(), d.board.hotShare(), demoHot)
	if err := d.settled(ctx); err != nil {
		return demoReport{}, err
	}
	stopReading()
	if err := d.dismiss(ctx); err != nil {
		return demoReport{}, err
	}
	return d.report(ctx)
}

// perform pushes for as long as the plot takes.
func (d *demo) perform(ctx, until context.Context, duration time.Duration) error {
	pushing, stop := context.WithCancel(until)
	defer stop()
	var g errgroup.Group
	g.Go(func() error {
		defer stop()
		return d.push(ctx, pushing.Done())
	})
	err := d.Play(ctx, pushing, duration)
	stop()
	return cmp.Or(err, g.Wait())
}

// Play is what happens while pushes are made: in each scene a worker is killed and another begins, and a history
// is rewritten.
func (d *demo) Play(ctx, until context.Context, duration time.Duration) error {
	scenes, length := max(1, int(duration/demoScene)), demoScene
	if duration > 0 {
		length = duration / time.Duration(scenes)
	}
	for scene := 0; duration == 0 || scene < scenes; scene++ {
		end := time.Now().Add(length)
		if !app.Sleep(until, length/4) {
			return nil
		}
		if struck, err := d.crash(ctx, until); !struck || err != nil {
			return err
		}
		if !app.Sleep(until, length/10) {
			return nil
		}
		if err := d.hire(ctx); err != nil {
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
