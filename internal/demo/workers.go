package demo

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/telemetry"
	"lockstep/locking"
)

// worker is a worker process.
type worker struct {
	name string
	cmd  *exec.Cmd
	kill context.CancelFunc
	done chan struct{} // closed after its exit
}

// startWorker starts another worker process, without the user's own LOCKSTEP_* settings. It is killed when ctx is done.
func (d *demo) startWorker(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	w := &worker{name: fmt.Sprintf("w%d", len(d.workers)+1), done: make(chan struct{})}
	ctx, w.kill = context.WithCancel(ctx)
	w.cmd = exec.CommandContext(ctx, self, "serve", "--config", os.DevNull, "--redis", d.redis.String(),
		"--root", d.root, "--worker", w.name,
		"--lease", lease.String(), "--tree-grace", "10s", "--limits", "min-free-bytes=0", "--log-level", "error")
	w.cmd.Env = slices.DeleteFunc(slices.Clone(d.std.Environ), func(pair string) bool {
		return strings.HasPrefix(pair, config.EnvPrefix)
	})
	w.cmd.Stdout, w.cmd.Stderr = d.std.Stderr, d.std.Stderr
	// Ctrl-C must not reach the workers. They die with this process, whose threads do not end before it, and
	// which hosts their Redis.
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := w.cmd.Start(); err != nil {
		return fmt.Errorf("start worker %s: %w", w.name, err)
	}
	d.tasks.Go(func() error {
		defer close(w.done)
		if err := w.cmd.Wait(); err != nil && ctx.Err() == nil {
			return fmt.Errorf("demo: worker %s exited unexpectedly: %w", w.name, err)
		}
		return nil
	})
	d.workers = append(d.workers, w)
	d.say("worker %s started, pid %d", w.name, w.cmd.Process.Pid)
	return nil
}

// killHolder kills the holder of the hot repository with kill -9, in the middle of a fetch, and returns when.
// It returns no time if until is done before.
func (d *demo) killHolder(ctx, until context.Context) (killed time.Time, err error) {
	select {
	case d.hang <- struct{}{}:
	case <-until.Done():
		return time.Time{}, context.Cause(ctx)
	}
	lost, err := d.locks.Status(ctx, hotRepo)
	if err != nil {
		return time.Time{}, err
	}
	for _, w := range d.workers {
		if w.name == lost.Holder.Worker {
			killed = time.Now()
			w.kill()
			<-w.done
			d.say("%s killed with kill -9 while it held %s (fence %d)", w.name, hotRepo, lost.Fence)
			return killed, nil
		}
	}
	return time.Time{}, fmt.Errorf("demo: a worker fetches %s without its lease", hotRepo)
}

// awaitTakeover waits until a worker holds the hot repository since the kill.
func (d *demo) awaitTakeover(ctx context.Context, killed time.Time) error {
	var next locking.Status
	err := d.await(ctx, "taken over", func() bool {
		next, _ = d.locks.Status(ctx, hotRepo) // an error is temporary
		return next.Holder.Since.After(killed)
	})
	if err != nil {
		return err
	}
	d.takeover = next.Holder.Since.Sub(killed)
	d.say("its lease expired: %s took over after %.2f s (fence %d)", next.Holder.Worker, d.takeover.Seconds(), next.Fence)
	return nil
}

// stopWorkers stops the remaining workers with SIGTERM and waits until they have drained.
func (d *demo) stopWorkers(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout,
		fmt.Errorf("demo: not all workers drained within %v", stepTimeout))
	defer cancel()
	for _, w := range d.workers {
		_ = w.cmd.Process.Signal(syscall.SIGTERM) // fails if it has exited
	}
	for _, w := range d.workers {
		select {
		case <-w.done:
		case <-ctx.Done():
		}
	}
	d.say("all workers drained")
	return context.Cause(ctx)
}

// openWeb serves HTTP like lockstep serve, with a token that only the event shows.
func (d *demo) openWeb(ctx context.Context, address string) error {
	token := rand.Text()
	cfg, err := config.Load(nil, os.DevNull,
		[]string{config.EnvPrefix + "REDIS=" + d.redis.String(), config.EnvPrefix + "API_TOKEN=" + token})
	if err != nil {
		return err
	}
	cfg.Root, cfg.Roles, cfg.Listen = d.root, []string{config.RoleWorker}, address // the dashboard reads the volume
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w; choose another address with --web=ADDRESS", err)
	}
	log := slog.New(slog.NewTextHandler(d.std.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	d.tasks.Go(func() error {
		return app.ServeHTTP(ctx, listener, app.Config{Config: cfg, Redis: d.redis, Log: log, Metrics: telemetry.New()})
	})
	d.say("dashboard at http://%s/", listener.Addr())
	d.say("log in with %s to make changes", token)
	return nil
}
