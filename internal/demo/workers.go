package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"lockstep/internal/config"
	"lockstep/internal/term"
)

// The lease is short to keep the crash scene short. On a slow machine it is the time that it took to create the sample repositories:
// a worker that gets no CPU for longer would lose its leases.
const (
	minLease = 2 * time.Second
	maxLease = 30 * time.Second
)

// worker is a worker process.
type worker struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}

	expected atomic.Bool // the exit is expected
	killed   atomic.Bool
}

func (c *worker) pid() int { return c.cmd.Process.Pid }

// Kill kills the process, unless it has exited, and waits for it.
func (c *worker) Kill() {
	c.expected.Store(true)
	_ = c.cmd.Process.Kill()
	<-c.done
}

func (c *worker) running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// workerSet holds all workers ever started.
type workerSet struct {
	mu      sync.Mutex
	workers []*worker
}

func (s *workerSet) all() []*worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.workers)
}

func (s *workerSet) named(name string) *worker {
	for _, c := range s.all() {
		if c.name == name && c.running() {
			return c
		}
	}
	return nil
}

func (s *workerSet) killAll() {
	for _, c := range s.all() {
		c.Kill()
	}
}

// startWorker starts another worker process, without the user's own LOCKSTEP_* settings.
func (d *demo) startWorker(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("w%d", len(d.workers.all())+1)
	cmd := exec.Command(self, "serve", "--redis", d.redis.String(), "--root", d.root, "--credentials", d.credentials(),
		"--worker", name, "--lease", d.lease.String(), "--tree-grace", "10s", "--min-free-bytes", "0", "--log-level", "error")
	cmd.Dir = d.dir // contains no lockstep.yaml
	cmd.Env = slices.DeleteFunc(slices.Clone(d.std.Environ), func(pair string) bool { return strings.HasPrefix(pair, config.EnvPrefix) })
	output := d.view.lines(name)
	cmd.Stdout, cmd.Stderr = output, output
	// Ctrl-C must not reach the workers. They die with this process, which hosts their Redis.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}

	c := &worker{name: name, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Pdeathsig refers to the thread that starts the process
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		defer close(c.done)
		if err := cmd.Wait(); !c.expected.Load() {
			d.fail(fmt.Errorf("demo: worker %s exited unexpectedly: %w", name, cmp.Or(err, errors.New("exit status 0"))))
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start worker %s: %w", name, err)
	}
	d.workers.mu.Lock()
	d.workers.workers = append(d.workers.workers, c)
	d.workers.mu.Unlock()
	d.view.event("worker %s started, pid %d", name, c.pid())
	return ctx.Err()
}

// killHolder kills the holder of the hot repository with kill -9 in the middle of a fetch and waits until another worker has taken
// over. It returns false if until was done before the kill.
func (d *demo) killHolder(ctx, until context.Context) (killed bool, err error) {
	var (
		victim, successor string
		lost, fence       uint64
		from              time.Time // start of the kill
		after             time.Duration
		waiting           int
	)
	for deadline := time.Now().Add(stepTimeout); victim == ""; {
		met, err := d.duringFetch(ctx, until, deadline, func() error {
			lock, err := d.lock(ctx, d.board.hot())
			if err != nil || !lock.Held {
				return err
			}
			if c := d.workers.named(lock.Holder.Worker); c != nil {
				c.killed.Store(true)
				from = time.Now()
				c.Kill()
				victim, lost = c.name, lock.Fence
				dead := time.Now()
				held, err := d.heldBy(ctx, victim)
				d.board.stall(dead, held)
				return err
			}
			return nil
		})
		if !met || err != nil {
			return false, err
		}
	}
	d.view.event("%s killed with kill -9 while it held %s (fence %d) and waited for its fetch", victim, hotRepo, lost)
	for deadline := time.Now().Add(stepTimeout); successor == ""; {
		met, err := d.duringFetch(ctx, ctx, deadline, func() error {
			lock, err := d.lock(ctx, d.board.hot())
			if err == nil && lock.Held && lock.Holder.Worker != victim {
				successor, fence, after = lock.Holder.Worker, lock.Fence, max(0, lock.Holder.Since.Sub(from))
				waiting = d.board.resume(after)
			}
			return err
		})
		if !met || err != nil {
			return true, err
		}
	}
	if fence <= lost {
		return true, fmt.Errorf("demo: %s took over %s with fence %d, which is not above %d", successor, hotRepo, fence, lost)
	}
	d.view.event("its lease expired: %s took over after %.2f s (fence %d), with %d changes waiting", successor, after.Seconds(), fence, waiting)
	return true, nil
}

// heldBy returns the repositories whose lease the worker holds.
func (d *demo) heldBy(ctx context.Context, worker string) (held []*sampleRepo, err error) {
	for _, repo := range d.board.repos {
		lock, err := d.lock(ctx, repo)
		if err != nil {
			return held, err
		}
		if lock.Held && lock.Holder.Worker == worker {
			held = append(held, repo)
		}
	}
	return held, nil
}

// duringFetch calls fn during the next fetch of the hot repository, while the fetch waits for a response. It returns false if until
// is done first.
func (d *demo) duringFetch(ctx, until context.Context, deadline time.Time, fn func() error) (met bool, err error) {
	result := make(chan error, 1)
	patience := time.NewTimer(time.Until(deadline))
	defer patience.Stop()
	select {
	case d.onFetch <- func() { result <- fn() }:
		return true, <-result
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-until.Done():
		return false, nil
	case <-patience.C:
		return false, fmt.Errorf("demo: no worker fetched %s for %v", hotRepo, stepTimeout)
	}
}

// stopWorkers stops the remaining workers with SIGTERM and returns an error unless they drain.
func (d *demo) stopWorkers(ctx context.Context) error {
	began := time.Now()
	var names []string
	for _, c := range d.workers.all() {
		if c.running() {
			c.expected.Store(true)
			names = append(names, c.name)
			_ = c.cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	patience := time.NewTimer(stepTimeout)
	defer patience.Stop()
	for _, c := range d.workers.all() {
		select {
		case <-c.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-patience.C:
			return fmt.Errorf("demo: worker %s still runs %v after SIGTERM", c.name, stepTimeout)
		}
		if code := c.cmd.ProcessState.ExitCode(); !c.killed.Load() && code != term.ExitDone {
			return fmt.Errorf("demo: worker %s exited with code %d after SIGTERM", c.name, code)
		}
	}
	d.view.event("%s drained in %.2f s", strings.Join(names, " and "), time.Since(began).Seconds())
	return nil
}
