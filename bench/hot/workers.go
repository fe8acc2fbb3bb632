package hot

import (
	"context"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"lockstep/bench/rig"
	"lockstep/events"
)

// workload configures worker processes.
type workload struct{ processes, slots int }

func (l *workload) addFlags(flags *pflag.FlagSet, processes, slots int) {
	flags.IntVar(&l.processes, "processes", processes, "number of worker processes")
	flags.IntVar(&l.slots, "slots", slots, "number of changes that each process works on concurrently")
}

// services are processes of lockstep serve with the role worker.
type services []*rig.Process

// startServices starts worker processes with default settings, apart from the slots.
func (l workload) startServices(ctx context.Context, env *rig.Env, server *rig.Redis, args ...string) (services, error) {
	path, err := env.Lockstep(ctx)
	if err != nil {
		return nil, err
	}
	return l.startBinary(ctx, env, server, path, filepath.Join(env.Dir, "root"), args...)
}

// startBinary is like startServices for a given binary and volume.
func (l workload) startBinary(ctx context.Context, env *rig.Env, server *rig.Redis, path, root string, args ...string) (s services, err error) {
	args = append([]string{"serve", "--roles", "worker", "--redis", server.URL, "--root", root,
		"--slots", strconv.Itoa(l.slots), "--log-level", "error"}, args...)
	for range l.processes {
		process, err := env.StartBinary(ctx, path, args...)
		if err != nil {
			return s, err
		}
		s = append(s, process)
	}
	return s, nil
}

// kill kills the processes.
func (s services) kill() {
	for _, process := range s {
		_ = process.Kill()
	}
}

// countLog returns how many lines the processes have logged that contain the text.
func (s services) countLog(text string) (n int, err error) {
	for _, process := range s {
		more, err := process.CountLog(text)
		if err != nil {
			return 0, err
		}
		n += more
	}
	return n, nil
}

// pausing are processes of bench hot-worker: real subscriber, lock and slots, with a pause instead of Git.
type pausing struct {
	workers rig.Workers
	reading sync.WaitGroup
	lines   [][4]int64 // event, began, ended, settled; settled is 0 if that failed
}

// startPausing starts workers that pause for work on each change. The caller must stop them.
func (l workload) startPausing(
	ctx context.Context, env *rig.Env, server *rig.Redis, namespace events.Namespace, work time.Duration,
) (*pausing, error) {
	contestants, err := Contestants(nil)
	if err != nil {
		return nil, err
	}
	p := &pausing{}
	p.workers, _, err = env.StartWorkers(ctx, l.processes, contestants[0], "work", "--redis", server.URL,
		"--prefix", string(namespace), "--slots", strconv.Itoa(l.slots), "--work-ms", strconv.FormatInt(work.Milliseconds(), 10))
	if err == nil {
		_, err = p.workers.Go(ctx)
	}
	if err != nil {
		p.workers.Kill()
		return nil, err
	}
	p.reading.Go(func() {
		_ = p.workers.EachLine(ctx, func(_ int, line string) error { // fails, because stop kills the processes
			numbers, err := rig.ParseNumbers(line)
			p.lines = append(p.lines, numbers)
			return err
		})
	})
	return p, nil
}

// withPausing calls measure while workers pause for work on each change.
func (l workload) withPausing(
	ctx context.Context, env *rig.Env, server *rig.Redis, work time.Duration, measure func(*ledger, *pausing) (rig.Report, error),
) (rig.Report, error) {
	changes, err := newLedger(server, rig.NewNamespace())
	if err != nil {
		return nil, err
	}
	workers, err := l.startPausing(ctx, env, server, changes.namespace, work)
	if err != nil {
		return nil, err
	}
	defer workers.stop()
	return measure(changes, workers)
}

// stop kills the workers and returns the lines that they printed.
func (p *pausing) stop() [][4]int64 {
	for _, worker := range p.workers {
		_ = worker.Cmd.Process.Kill()
	}
	p.reading.Wait()
	return p.lines
}
