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

	"lockstep/internal/cli/term"
	"lockstep/internal/config"
)

// The workers' lease is short, so that the demonstration of a crash is too. On a machine that others keep busy it is what
// it took to make the sample repositories: a worker that comes to nothing for longer loses its leases, and that is not
// what is to be shown.
const (
	demoLease       = 2 * time.Second
	demoLeaseAtMost = 30 * time.Second
)

// child is a worker process.
type child struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}

	expected atomic.Bool // to end
	killed   atomic.Bool
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// Kill ends the process, if it has not ended, and returns when it has.
func (c *child) Kill() {
	c.expected.Store(true)
	_ = c.cmd.Process.Kill()
	<-c.done
}

// running reports whether the process has not ended.
func (c *child) running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// demoStaff is all workers that there ever were.
type demoStaff struct {
	mu      sync.Mutex
	workers []*child
}

func (s *demoStaff) all() []*child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.workers)
}

func (s *demoStaff) named(name string) *child {
	for _, c := range s.all() {
		if c.name == name && c.running() {
			return c
		}
	}
	return nil
}

func (s *demoStaff) killAll() {
	for _, c := range s.all() {
		c.Kill()
	}
}

// hire starts another worker, in a process of its own. What the user has set for a service of their own is
// not for this one.
func (d *demo) hire(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("w%d", len(d.staff.all())+1)
	cmd := exec.Command(self, "serve", "--redis", d.redis.String(), "--root", d.root, "--credentials", d.credentials(),
		"--worker", name, "--lease", d.lease.String(), "--tree-grace", "10s", "--min-free-bytes", "0", "--log-level", "error")
	cmd.Dir = d.dir // where no lockstep.yaml is
	cmd.Env = slices.DeleteFunc(slices.Clone(d.std.Environ), func(pair string) bool { return strings.HasPrefix(pair, config.EnvPrefix) })
	said := d.view.lines(name)
	cmd.Stdout, cmd.Stderr = said, said
	// Ctrl-C is for us; we tell our workers. If we are killed they go too, for we are their Redis.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}

	c := &child{name: name, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // for Pdeathsig is about the thread that started the process
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		defer close(c.done)
		if err := cmd.Wait(); !c.expected.Load() {
			d.fail(fmt.Errorf("demo: worker %s ended by itself: %w", name, cmp.Or(err, errors.New("exit status 0"))))
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start worker %s: %w", name, err)
	}
	d.staff.mu.Lock()
	d.staff.workers = append(d.staff.workers, c)
	d.staff.mu.Unlock()
	d.view.event("worker %s started, pid %d", name, c.pid())
	return ctx.Err()
}

// crash kills the worker that holds the hot repository, with kill -9 and in the middle of its fetch, and
// returns when another has taken over. It reports false when until was done before the kill.
func (d *demo) crash(ctx, until context.Context) (struck bool, err error) {
	var (
		victim, heir string
		lost, fence  uint64
		from         time.Time // when it was killed
		after        time.Duration
		waiting      int
	)
	for deadline := time.Now().Add(demoPatience); victim == ""; {
		met, err := d.spring(ctx, until, deadline, func() error {
			lock, err := d.lock(ctx, d.board.hot())
			if err != nil || !lock.Held {
				return err
			}
			if c := d.staff.named(lock.Holder.Worker); c != nil {
				c.killed.Store(true)
				from = time.Now()
				c.Kill()
				victim, lost = c.name, lock.Fence
				killed := time.Now() // nothing is of its doing any more
				held, err := d.heldBy(ctx, victim)
				d.board.stall(killed, held)
				return err
			}
			return nil
		})
		if !met || err != nil {
			return false, err
		}
	}
	d.view.event("%s killed with kill -9 while it held %s (fence %d) and waited for its fetch", victim, demoHot, lost)
	for deadline := time.Now().Add(demoPatience); heir == ""; {
		met, err := d.spring(ctx, ctx, deadline, func() error {
			lock, err := d.lock(ctx, d.board.hot())
			if err == nil && lock.Held && lock.Holder.Worker != victim {
				heir, fence, after = lock.Holder.Worker, lock.Fence, max(0, lock.Holder.Since.Sub(from))
				waiting = d.board.resume(after)
			}
			return err
		})
		if !met || err != nil {
			return true, err
		}
	}
	if fence <= lost {
		return true, fmt.Errorf("demo: %s took over %s with fence %d, which is not above %d", heir, demoHot, fence, lost)
	}
	d.view.event("its lease lapsed: %s took over after %.2f s (fence %d), with %d changes waiting", heir, after.Seconds(), fence, waiting)
	return true, nil
}

// heldBy are the repositories whose leases a worker has.
func (d *demo) heldBy(ctx context.Context, worker string) (held []*demoRepo, err error) {
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

// spring has fn called when the next worker fetches the hot repository, while that waits for the answer. It reports
// false when until was done before.
func (d *demo) spring(ctx, until context.Context, deadline time.Time, fn func() error) (met bool, err error) {
	result := make(chan error, 1)
	patience := time.NewTimer(time.Until(deadline))
	defer patience.Stop()
	select {
	case d.trap <- func() { result <- fn() }:
		return true, <-result
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-until.Done():
		return false, nil
	case <-patience.C:
		return false, fmt.Errorf("demo: nobody has fetched %s for %v", demoHot, demoPatience)
	}
}

// dismiss ends the workers that are left as an operator would, with SIGTERM, and fails unless they drain.
func (d *demo) dismiss(ctx context.Context) error {
	began := time.Now()
	var names []string
	for _, c := range d.staff.all() {
		if c.running() {
			c.expected.Store(true)
			names = append(names, c.name)
			_ = c.cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	patience := time.NewTimer(demoPatience)
	defer patience.Stop()
	for _, c := range d.staff.all() {
		select {
		case <-c.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-patience.C:
			return fmt.Errorf("demo: worker %s has not ended %v after SIGTERM", c.name, demoPatience)
		}
		if code := c.cmd.ProcessState.ExitCode(); !c.killed.Load() && code != term.ExitDone {
			return fmt.Errorf("demo: worker %s ended with exit code %d after SIGTERM", c.name, code)
		}
	}
	d.view.event("%s drained in %.2f s", strings.Join(names, " and "), time.Since(began).Seconds())
	return nil
}
