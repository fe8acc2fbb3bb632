package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"lockstep/internal/config"
)

// demoFlags say how the demonstration is given.
type demoFlags struct {
	duration time.Duration
	web      string
	keep     bool
	out      output
}

func newDemoCommand(std streams) *cobra.Command {
	var f demoFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the whole of it, on sample repositories",
		Long: "Start a Git server with sample repositories, an embedded Redis and two worker processes. Push to all\n" +
			"repositories, to one of them most of the time, for two apps with a token each; kill a worker while it\n" +
			"holds that one, with kill -9; rewrite a history; and read every published tree all the while, file by\n" +
			"file. What happens is shown live on standard error, and a table at the end says whether everything was\n" +
			"as promised. Needs git, and nothing else: no Redis, no network.",
		Example: "  lockstep demo\n" +
			"  lockstep demo --web\n" +
			"  lockstep demo --duration 5s --json",
		Args: wrongUse(func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && cmd.Flags().Changed("web") && f.web == demoWeb { // --web ADDRESS, of which pflag takes no notice
				f.web = args[0]
				return nil
			}
			return noArgs(cmd, args)
		}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			open := cmd.Flags().Changed("web") && !cmd.Flags().Changed("duration")
			if err := usage(config.CheckAddress("--web", f.web)); err != nil {
				return err
			}
			switch {
			case f.duration < time.Second || f.duration > demoLongest:
				return usageError(fmt.Errorf("--duration %v: want 1s to %v", f.duration, demoLongest))
			case open:
				f.duration = 0
			}
			return f.run(cmd.Context(), std)
		},
	}
	cmd.Flags().DurationVar(&f.duration, "duration", 15*time.Second, "how long to push; with --web and without this: until interrupted")
	cmd.Flags().StringVar(&f.web, "web", "", "open the dashboard on it, at this `address`")
	cmd.Flags().Lookup("web").NoOptDefVal = demoWeb
	cmd.Flags().BoolVar(&f.keep, "keep", false, "keep the sample repositories and the volume")
	f.out.add(cmd)
	return cmd
}

const (
	demoWeb      = "127.0.0.1:0" // where the dashboard is when nobody says
	demoLongest  = 24 * time.Hour
	demoPatience = 5 * time.Minute  // for what is a matter of seconds, unless others have the machine
	demoScene    = 20 * time.Second // the longest between two kills
)

// run gives the demonstration in a folder of its own.
func (f *demoFlags) run(ctx context.Context, std streams) error {
	dir, err := os.MkdirTemp("", "lockstep-demo-")
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil { // a TMPDIR may be relative, and the workers are elsewhere
		return err
	}
	view := newDemoView(std)
	defer view.close()
	if f.keep {
		view.event("keeping everything in %s", dir)
	} else {
		defer os.RemoveAll(dir)
	}
	defer context.AfterFunc(ctx, view.close)() // what the end of it tells comes as lines

	until := ctx
	if f.duration == 0 { // an interrupt is how it is meant to end
		ctx = context.WithoutCancel(ctx)
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer endTidily(until, fail)()
	report, err := f.give(ctx, until, &demo{dir: dir, fail: fail, std: std, view: view})
	if err != nil {
		return cmp.Or(context.Cause(ctx), err) // what ended it, not what was broken off by that
	}
	view.close()
	if err := f.out.show(std, report, report.table); err != nil {
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
func (f *demoFlags) give(ctx, until context.Context, d *demo) (demoReport, error) {
	if err := d.open(ctx); err != nil {
		return demoReport{}, err
	}
	defer d.close()
	backstage, strike := context.WithCancel(ctx)
	var crew errgroup.Group
	defer func() { strike(); _ = crew.Wait() }() // whoever fails in it has told d.fail
	crew.Go(func() error { return d.failing(d.follow(backstage)) })
	crew.Go(func() error { d.view.run(backstage, d.frame, d.line); return nil })
	crew.Go(func() error { return d.failing(d.lookAtLeases(backstage)) })
	if f.web != "" {
		if err := d.openWeb(backstage, f.web, &crew); err != nil {
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
		crew.Go(func() error { d.read(reading); return nil })
	}
	if err := d.perform(ctx, until, f.duration); err != nil {
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
	err := d.play(ctx, pushing, duration)
	stop()
	return cmp.Or(err, g.Wait())
}

// play is what happens while pushes are made: in each scene a worker is killed and another begins, and a history
// is rewritten.
func (d *demo) play(ctx, until context.Context, duration time.Duration) error {
	scenes, length := max(1, int(duration/demoScene)), demoScene
	if duration > 0 {
		length = duration / time.Duration(scenes)
	}
	for scene := 0; duration == 0 || scene < scenes; scene++ {
		end := time.Now().Add(length)
		if !pause(until, length/4) {
			return nil
		}
		if struck, err := d.crash(ctx, until); !struck || err != nil {
			return err
		}
		if !pause(until, length/10) {
			return nil
		}
		if err := d.hire(ctx); err != nil {
			return err
		}
		if !pause(until, length/5) {
			return nil
		}
		if err := d.rewrite(ctx); err != nil {
			return err
		}
		if !pause(until, time.Until(end)) {
			return nil
		}
	}
	return nil
}
