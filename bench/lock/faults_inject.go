package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lockstep/bench/rig"
	"lockstep/internal/app"
)

// Kinds of faults.
const (
	FaultKill    = "kill -9"
	FaultStop    = "SIGSTOP"
	FaultPubSub  = "pub/sub kill"
	FaultRestart = "Redis restart with its data"
	FaultEmpty   = "Redis restart empty"
)

// injectedFault is one fault of a run.
type injectedFault struct {
	Kind   string        `json:"kind"`
	At     time.Duration `json:"at_ns"` // since the start of the run
	PID    int           `json:"pid,omitempty"`
	Holder bool          `json:"holder,omitempty"` // it held the key
}

// faultDriver injects faults into workers and Redis.
type faultDriver struct {
	*bench
	volume volume
	redis  *rig.Redis
	start  func() (*rig.Worker, error)
	from   int64

	mu       sync.Mutex
	workers  rig.Workers
	busy     map[*rig.Worker]bool // workers with a fault
	injected []injectedFault

	down []rig.Span // times without Redis
}

// inject injects all kinds of faults concurrently for the duration. When it returns, stopped workers have resumed and Redis is up.
func (d *faultDriver) inject(ctx context.Context) error {
	g, during := errgroup.WithContext(ctx)
	during, cancel := context.WithTimeout(during, d.duration)
	defer cancel()
	g.Go(func() error { return d.killWorkers(ctx, during) })
	g.Go(func() error { return d.stopWorkers(ctx, during) })
	g.Go(func() error { d.killSubscriptions(during); return nil })
	g.Go(func() error { return d.restartRedis(ctx, during) })
	return g.Wait()
}

// killWorkers kills one worker after the other, a quarter of them while they hold the key, and starts new ones.
func (d *faultDriver) killWorkers(ctx, during context.Context) error {
	for app.Sleep(during, 500*time.Millisecond+rand.N(500*time.Millisecond)) {
		victim, err := d.strike(during, rand.N(4) == 0, FaultKill, func(pid int) error { return unix.Kill(pid, unix.SIGKILL) })
		if err != nil {
			return err
		}
		victim.Kill()
		if victim.Cmd.ProcessState.Exited() {
			return victim.Explain(ctx, errors.New("worker ended by itself"))
		}
		next, err := d.start()
		if err != nil {
			return err
		}
		d.mu.Lock()
		d.workers[slices.Index(d.workers, victim)] = next
		delete(d.busy, victim)
		d.mu.Unlock()
		if _, err := next.Ready(); err != nil {
			return next.Explain(ctx, err)
		}
	}
	return nil
}

// stopWorkers stops one worker at a time for longer than a lease, half of them while they hold the key.
func (d *faultDriver) stopWorkers(ctx, during context.Context) error {
	for app.Sleep(during, d.lease/4+rand.N(d.lease/4)) {
		victim, err := d.strike(during, rand.N(2) == 0, FaultStop, stopProcess)
		if err != nil {
			return err
		}
		app.Sleep(during, d.lease+d.lease/8+rand.N(d.lease/4))
		if err := victim.Cmd.Process.Signal(unix.SIGCONT); err != nil {
			return victim.Explain(ctx, fmt.Errorf("resume worker: %w", err))
		}
		d.mu.Lock()
		delete(d.busy, victim)
		d.mu.Unlock()
	}
	return nil
}

// stopProcess returns once the process has stopped.
func stopProcess(pid int) error {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop worker: %w", err)
	}
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("stop worker: %w", err)
		case !status.Stopped():
			return errors.New("worker ended by itself")
		default:
			return nil
		}
	}
}

func (d *faultDriver) killSubscriptions(during context.Context) {
	for app.Sleep(during, 200*time.Millisecond+rand.N(400*time.Millisecond)) {
		if n, err := d.redis.Client.ClientKillByFilter(during, "TYPE", "pubsub").Result(); err == nil && n > 0 {
			d.record(FaultPubSub, 0, false)
		}
	}
}

// restartRedis restarts Redis about four times, with its data and empty in turn.
func (d *faultDriver) restartRedis(ctx, during context.Context) error {
	every := max(d.duration/5, d.lease)
	empty := rand.N(2) == 0
	for ; app.Sleep(during, every*3/4+rand.N(every/2)); empty = !empty {
		kind := FaultRestart
		if empty {
			kind = FaultEmpty
		}
		d.record(kind, 0, false)
		down, err := d.redis.Restart(ctx, empty, 100*time.Millisecond+rand.N(300*time.Millisecond))
		if err != nil {
			return err
		}
		d.down = append(d.down, down)
	}
	return nil
}

// strike calls f for a worker without a fault, and returns it. With holder it prefers the worker that holds the key, if it finds it
// soon. No worker is in the guard during the call, because processes stopped in the middle of a write are not part of the test.
func (d *faultDriver) strike(during context.Context, holder bool, kind string, f func(pid int) error) (victim *rig.Worker, err error) {
	for deadline := time.Now().Add(100 * time.Millisecond); holder && time.Now().Before(deadline); {
		err := d.volume.guarded(func() error {
			last, err := d.volume.last()
			if err != nil || last == (write{}) || last.End || last.Refused {
				return err
			}
			if victim = d.take(func(w *rig.Worker) bool { return w.Cmd.Process.Pid == last.PID }); victim == nil {
				return nil
			}
			d.record(kind, last.PID, true)
			return f(last.PID)
		})
		if victim != nil || err != nil {
			return victim, err
		}
		if !app.Sleep(during, 500*time.Microsecond) {
			break
		}
	}
	err = d.volume.guarded(func() error {
		victim = d.take(func(*rig.Worker) bool { return true })
		d.record(kind, victim.Cmd.Process.Pid, false)
		return f(victim.Cmd.Process.Pid)
	})
	return victim, err
}

// take returns a worker without a fault for which ok returns true, or nil.
func (d *faultDriver) take(ok func(*rig.Worker) bool) *rig.Worker {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, i := range rand.Perm(len(d.workers)) {
		if w := d.workers[i]; !d.busy[w] && ok(w) {
			d.busy[w] = true
			return w
		}
	}
	return nil
}

func (d *faultDriver) record(kind string, pid int, holder bool) {
	at := time.Duration(rig.Monotonic() - d.from)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.injected = append(d.injected, injectedFault{kind, at, pid, holder})
}

// finish ends all workers.
func (d *faultDriver) finish(ctx context.Context) error {
	for _, w := range d.workers {
		_ = w.Stdin.Close()
	}
	defer time.AfterFunc(rig.RoundGrace, func() {
		for _, w := range d.workers {
			_ = w.Cmd.Process.Kill()
		}
	}).Stop()
	var errs []error
	for _, w := range d.workers {
		if err := w.Wait(); err != nil {
			errs = append(errs, w.Explain(ctx, fmt.Errorf("worker: %w", err)))
		}
	}
	return errors.Join(errs...)
}
