package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lockstep/bench/rig"
	"lockstep/internal/redisx"
)

// Kinds of faults.
const (
	faultKill    = "kill -9"
	faultStop    = "SIGSTOP"
	faultRestart = "Redis restart with its data"
	faultEmpty   = "Redis restart empty"
)

// faultDriver injects faults into workers and Redis.
type faultDriver struct {
	*bench
	volume volume
	redis  *rig.Redis
	start  func() (*rig.Worker, error)

	mu       sync.Mutex
	workers  rig.Workers
	busy     map[*rig.Worker]bool // workers with a fault
	injected map[string]int       // by kind

	down []rig.Span // times without Redis
}

// runFaults lets processes contend for one key while faults are injected, and judges the log of what they wrote.
func (b *bench) runFaults(ctx context.Context, env *rig.Env) (report FaultReport, err error) {
	d := &faultDriver{bench: b, busy: map[*rig.Worker]bool{}, injected: map[string]int{}}
	if d.volume.dir, err = os.MkdirTemp("", "lockstep-bench-volume-"); err != nil {
		return report, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(d.volume.dir)
		}
	}()
	self, err := rig.Contestants("lock-worker", nil)
	if err != nil {
		return report, err
	}
	if d.redis, err = env.OpenRedis(ctx); err != nil {
		return report, err
	}
	args := []string{"--redis", d.redis.URL, "--volume", d.volume.dir, "--waiters", strconv.Itoa(d.waiters), "--lease", d.lease.String()}
	d.start = func() (*rig.Worker, error) { return env.StartWorker(ctx, self[0], args...) }
	defer func() { d.workers.Kill() }()
	if d.workers, _, err = env.StartWorkers(ctx, d.processes, self[0], args...); err != nil {
		return report, err
	}
	from := rig.Monotonic()
	if err := d.inject(ctx); err != nil {
		return report, err
	}
	if err := d.finish(ctx); err != nil {
		return report, err
	}
	log, err := d.volume.readLog()
	if err != nil {
		return report, err
	}
	report = FaultReport{Processes: d.processes, Waiters: d.waiters, Lease: d.lease, Duration: d.duration, Faults: d.injected, volume: d.volume}
	report.judge(rig.Span{From: from, To: from + d.duration.Nanoseconds()}, log, d.down)
	return report, nil
}

// inject injects all kinds of faults concurrently for the duration. When it returns, stopped workers have resumed and Redis is up.
func (d *faultDriver) inject(ctx context.Context) error {
	g, during := errgroup.WithContext(ctx)
	during, cancel := context.WithTimeout(during, d.duration)
	defer cancel()
	g.Go(func() error { return d.killWorkers(ctx, during) })
	g.Go(func() error { return d.stopWorkers(ctx, during) })
	g.Go(func() error { return d.restartRedis(ctx, during) })
	return g.Wait()
}

// killWorkers kills one worker after the other, a quarter of the times the holder of the key, and starts new ones.
func (d *faultDriver) killWorkers(ctx, during context.Context) error {
	for redisx.Pause(during, 500*time.Millisecond+rand.N(500*time.Millisecond)) {
		victim, err := d.strike(faultKill, rand.N(4) == 0, func(pid int) error { return unix.Kill(pid, unix.SIGKILL) })
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

// stopWorkers stops one worker at a time for longer than a lease, half of the times the holder of the key.
func (d *faultDriver) stopWorkers(ctx, during context.Context) error {
	for redisx.Pause(during, d.lease/4+rand.N(d.lease/4)) {
		victim, err := d.strike(faultStop, rand.N(2) == 0, stopProcess)
		if err != nil {
			return err
		}
		redisx.Pause(during, d.lease+d.lease/8+rand.N(d.lease/4))
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

// restartRedis restarts Redis about four times, with its data and empty in turn.
func (d *faultDriver) restartRedis(ctx, during context.Context) error {
	every := max(d.duration/5, d.lease)
	empty := rand.N(2) == 0
	for ; redisx.Pause(during, every*3/4+rand.N(every/2)); empty = !empty {
		down, err := d.redis.Restart(ctx, empty, 100*time.Millisecond+rand.N(300*time.Millisecond))
		if err != nil {
			return err
		}
		d.down = append(d.down, down)
		if empty {
			d.count(faultEmpty)
		} else {
			d.count(faultRestart)
		}
	}
	return nil
}

// strike calls f for a worker without a fault, and returns it. With atHolder it prefers the one that holds the key. No worker is in the guard
// during the call, because processes stopped in the middle of a write are not part of the test.
func (d *faultDriver) strike(kind string, atHolder bool, f func(pid int) error) (victim *rig.Worker, err error) {
	d.count(kind)
	err = d.volume.guarded(func() error {
		log, err := d.volume.readLog()
		if err != nil {
			return err
		}
		prefer := 0
		if atHolder && len(log) > 0 && !log[len(log)-1].End {
			prefer = log[len(log)-1].PID
		}
		victim = d.take(prefer)
		return f(victim.Cmd.Process.Pid)
	})
	return victim, err
}

// take returns a worker without a fault, the preferred one if it is one.
func (d *faultDriver) take(preferred int) (victim *rig.Worker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, i := range rand.Perm(len(d.workers)) {
		w := d.workers[i]
		if !d.busy[w] && (victim == nil || w.Cmd.Process.Pid == preferred) {
			victim = w
		}
	}
	d.busy[victim] = true
	return victim
}

func (d *faultDriver) count(kind string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.injected[kind]++
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
	return d.workers.EachLine(ctx, func(int, string) error { return nil })
}
