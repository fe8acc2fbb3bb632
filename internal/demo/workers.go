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
	"sync/atomic"
	"syscall"
	"time"

	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/telemetry"
	"lockstep/locking"
)

// worker is a worker process.
type worker struct {
	name   string
	cmd    *exec.Cmd
	done   chan struct{}
	killed atomic.Bool
}

// kill kills the process and waits for it.
func (w *worker) kill() {
	w.killed.Store(true)
	_ = w.cmd.Process.Kill()
	<-w.done
}

// running returns the workers that have not exited.
func (d *demo) running() (alive []*worker) {
	for _, w := range d.workers {
		select {
		case <-w.done:
		default:
			alive = append(alive, w)
		}
	}
	return alive
}

// startWorker starts another worker process, without the user's own LOCKSTEP_* settings.
func (d *demo) startWorker() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("w%d", len(d.workers)+1)
	cmd := exec.Command(self, "serve", "--redis", d.redis.String(), "--root", d.root, "--worker", name,
		"--lease", lease.String(), "--tree-grace", "10s", "--limits", "min-free-bytes=0", "--log-level", "error")
	cmd.Dir = d.dir // contains no lockstep.yaml
	cmd.Env = slices.DeleteFunc(slices.Clone(d.std.Environ), func(pair string) bool { return strings.HasPrefix(pair, config.EnvPrefix) })
	cmd.Stdout, cmd.Stderr = d.std.Stderr, d.std.Stderr
	// Ctrl-C must not reach the workers. They die with this process, whose threads do not end before it, and which hosts their Redis.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start worker %s: %w", name, err)
	}
	w := &worker{name: name, cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		if err := cmd.Wait(); err != nil && !w.killed.Load() {
			d.fail(fmt.Errorf("demo: worker %s exited unexpectedly: %w", name, err))
		}
	}()
	d.workers = append(d.workers, w)
	d.say("worker %s started, pid %d", name, cmd.Process.Pid)
	return nil
}

// killHolder kills the holder of the hot repository with kill -9 and waits until another worker has taken over, unless until is done
// before.
func (d *demo) killHolder(ctx, until context.Context) error {
	var lost locking.Status
	var victim *worker
	for victim == nil {
		if !app.Sleep(until, 5*time.Millisecond) {
			return context.Cause(ctx)
		}
		var err error
		if lost, err = d.locks.Status(ctx, hotRepo); err != nil {
			return err
		}
		for _, w := range d.running() {
			if lost.Held && w.name == lost.Holder.Worker {
				victim = w
			}
		}
	}
	killed := time.Now()
	victim.kill()
	d.say("%s killed with kill -9 while it held %s (fence %d)", victim.name, hotRepo, lost.Fence)
	var next locking.Status
	err := d.await(ctx, "taken over", func() bool {
		next, _ = d.locks.Status(ctx, hotRepo) // an error is temporary
		return next.Held && next.Holder.Worker != victim.name
	})
	if err != nil {
		return err
	}
	d.takeover = max(0, next.Holder.Since.Sub(killed))
	d.say("its lease expired: %s took over after %.2f s (fence %d)", next.Holder.Worker, d.takeover.Seconds(), next.Fence)
	return nil
}

// stopWorkers stops the remaining workers with SIGTERM and waits until they have drained.
func (d *demo) stopWorkers(ctx context.Context) error {
	for _, w := range d.running() {
		_ = w.cmd.Process.Signal(syscall.SIGTERM)
	}
	if err := d.await(ctx, "drained", func() bool { return len(d.running()) == 0 }); err != nil {
		return err
	}
	d.say("all workers drained")
	return context.Cause(ctx) // that of a failed worker
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
