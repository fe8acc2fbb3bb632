package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"lockstep/bench/lock"
)

// What a run with faults does unless it is told otherwise.
const (
	faultLease     = 2 * time.Second
	faultDuration  = 15 * time.Second
	faultProcesses = 6
)

// faultReport is the whole of a run with faults.
type faultReport struct {
	Machine   benchMachine      `json:"machine"`
	Processes int               `json:"processes"`
	Waiters   int               `json:"waiters"`
	Lease     time.Duration     `json:"lease_ns"`
	Duration  time.Duration     `json:"duration_ns"`
	Figures   lock.FaultFigures `json:"figures"`
	Faults    []injectedFault   `json:"faults"`
}

// runFaults has processes contend for one key while everything goes wrong, and judges the log of
// what they wrote.
func (b *lockBench) runFaults(ctx context.Context, std streams, key string) error {
	dir, err := os.MkdirTemp("", "lockstep-bench-volume-")
	if err != nil {
		return err
	}
	report, err := b.contendWithFaults(ctx, std, faultVolume{dir}, key)
	if err != nil {
		_ = os.RemoveAll(dir)
		return fmt.Errorf("bench with faults: %w", err)
	}
	if err := report.print(std.stdout, b.out); err != nil {
		_ = os.RemoveAll(dir)
		return err
	}
	if err := report.Figures.Err(); err != nil {
		return fmt.Errorf("bench with faults: %w\nits log is in %s", err, dir)
	}
	return os.RemoveAll(dir)
}

func (b *lockBench) contendWithFaults(ctx context.Context, std streams, volume faultVolume, key string) (faultReport, error) {
	report := faultReport{Processes: b.processes, Waiters: b.waiters, Lease: b.lease, Duration: b.duration}
	self, err := thisProgram()
	if err != nil {
		return report, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := &faultDriver{lease: b.lease, duration: b.duration, volume: volume, taken: map[*workerProcess]bool{}}
	if d.redis, err = startDurableRedis(ctx); err != nil {
		return report, err
	}
	defer d.kill()
	if d.bench, err = openBenchRedis(ctx, "redis://"+d.redis.addr); err != nil {
		return report, err
	}
	defer d.bench.Close()
	report.Machine = d.bench.machine()

	args := []string{"faults-worker", "--redis", d.bench.url, "--key", key, "--volume", volume.dir,
		"--waiters", strconv.Itoa(b.waiters), "--lease", b.lease.String()}
	d.start = func() (*workerProcess, error) { return startWorkerProcess(ctx, std, self.argv[0], args) }
	for range b.processes {
		w, err := d.start()
		if err != nil {
			return report, err
		}
		d.workers = append(d.workers, w)
	}
	for _, w := range d.workers {
		if _, err := w.ready(); err != nil {
			return report, w.explain(ctx, err)
		}
	}
	if d.from, err = monotonic(); err != nil {
		return report, err
	}
	if err := d.inject(ctx); err != nil {
		return report, err
	}
	if err := d.finish(ctx); err != nil {
		return report, err
	}
	log, err := volume.readLog()
	if err != nil {
		return report, err
	}
	report.Faults = d.injected
	report.Figures = lock.JudgeFaults(lock.FaultRun{
		Span: lock.Span{From: d.from, To: d.from + b.duration.Nanoseconds()}, Lease: b.lease, Log: log, Down: d.down,
	})
	return report, nil
}

// readLog reads all of the log.
func (v faultVolume) readLog() ([]lock.Write, error) {
	file, err := os.Open(v.path("log"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var all []lock.Write
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		w, err := lock.ParseWrite(lines.Text())
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, lines.Err()
}

func (r faultReport) print(w io.Writer, out output) error {
	if !out.isTable() {
		return out.document(w, r)
	}
	fmt.Fprintf(w, "%s\n%d processes × %d waiters, one key, lease %v, %v\n\n", r.Machine, r.Processes, r.Waiters, r.Lease, r.Duration)
	kinds, holders := map[string]int{}, map[string]int{}
	for _, f := range r.Faults {
		kinds[f.Kind]++
		if f.Holder {
			holders[f.Kind]++
		}
	}
	f := r.Figures
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\t\tat most\t")
	for _, kind := range []string{faultKill, faultStop, faultPubSub, faultRestart, faultEmpty} {
		fmt.Fprintf(tw, "%s\t%d\t\t\n", kind, kinds[kind])
		if kind == faultKill || kind == faultStop {
			fmt.Fprintf(tw, "of the holder\t%d\t\t\n", holders[kind])
		}
	}
	fmt.Fprintf(tw, "Redis down, s\t%.3f\t\t\n", f.Down.Seconds())
	fmt.Fprintf(tw, "grants\t%d\t\t\n", f.Grants)
	fmt.Fprintf(tw, "grants/s\t%.0f\t\t\n", f.GrantsPerSecond)
	fmt.Fprintf(tw, "takeovers\t%d\t\t\n", f.Takeovers)
	fmt.Fprintf(tw, "refused stale writes\t%d\t\t\n", f.Refused)
	fmt.Fprintf(tw, "accepted fence inversions\t%d\t0\t\n", f.Inversions)
	fmt.Fprintf(tw, "fences with two owners\t%d\t0\t\n", f.TwoOwners)
	fmt.Fprintf(tw, "fences begun twice\t%d\t0\t\n", f.BegunTwice)
	fmt.Fprintf(tw, "longest gap, s\t%.3f\t\t\n", f.LongestGap.Seconds())
	fmt.Fprintf(tw, "longest gap, Redis up, s\t%.3f\t%.3f\t\n", f.LongestGapUp.Seconds(), f.MayGap.Seconds())
	return tw.Flush()
}

// checkFaults fills in what a run with faults has other defaults for, and refuses what it cannot do.
func (b *lockBench) checkFaults(given func(flag string) bool) error {
	if !b.faults {
		if given("lease") {
			return errors.New("--lease is for --faults alone")
		}
		return nil
	}
	for _, flag := range []string{"redis", "peer", "uncontended", "hold-many", "hold", "rounds"} {
		if given(flag) {
			return fmt.Errorf("--%s and --faults do not go together: it restarts a private redis-server, and runs once", flag)
		}
	}
	if !given("duration") {
		b.duration = faultDuration
	}
	if !given("processes") {
		b.processes = faultProcesses
	}
	b.lease = cmp.Or(b.lease, faultLease)
	switch {
	case b.processes < 3:
		return fmt.Errorf("--processes is %d: with --faults it must be at least 3, for one is stopped and another killed", b.processes)
	case b.lease < 500*time.Millisecond:
		return fmt.Errorf("--lease is %v; want at least 500ms", b.lease)
	case b.duration < 3*b.lease:
		return fmt.Errorf("--duration is %v: with --faults it must be at least three leases, %v", b.duration, 3*b.lease)
	}
	return nil
}
