package lock

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

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
)

// What a run with faults does unless it is told otherwise.
const (
	faultLease     = 2 * time.Second
	faultDuration  = 15 * time.Second
	faultProcesses = 6
)

// FaultReport is the whole of a run with faults.
type FaultReport struct {
	Machine   rig.Machine     `json:"machine"`
	Processes int             `json:"processes"`
	Waiters   int             `json:"waiters"`
	Lease     time.Duration   `json:"lease_ns"`
	Duration  time.Duration   `json:"duration_ns"`
	Figures   FaultFigures    `json:"figures"`
	Faults    []injectedFault `json:"faults"`
}

// runFaults has processes contend for one key while everything goes wrong, and judges the log of
// what they wrote.
func (b *Bench) runFaults(ctx context.Context, std term.Streams, key string) error {
	dir, err := os.MkdirTemp("", "lockstep-bench-volume-")
	if err != nil {
		return err
	}
	report, err := b.contendWithFaults(ctx, std, FaultVolume{Dir: dir}, key)
	if err != nil {
		_ = os.RemoveAll(dir)
		return fmt.Errorf("bench with faults: %w", err)
	}
	if err := report.Print(std.Stdout, b.out); err != nil {
		_ = os.RemoveAll(dir)
		return err
	}
	if err := report.Figures.Err(); err != nil {
		return fmt.Errorf("bench with faults: %w\nits log is in %s", err, dir)
	}
	return os.RemoveAll(dir)
}

func (b *Bench) contendWithFaults(ctx context.Context, std term.Streams, volume FaultVolume, key string) (FaultReport, error) {
	report := FaultReport{Processes: b.Processes, Waiters: b.Waiters, Lease: b.lease, Duration: b.Duration}
	self, err := thisProgram()
	if err != nil {
		return report, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := &faultDriver{lease: b.lease, duration: b.Duration, volume: volume, taken: map[*rig.Worker]bool{}}
	if d.redis, err = rig.StartDurableRedis(ctx); err != nil {
		return report, err
	}
	defer d.Kill()
	if d.bench, err = rig.OpenRedis(ctx, "redis://"+d.redis.Addr); err != nil {
		return report, err
	}
	defer d.bench.Close()
	report.Machine = d.bench.Machine()

	args := []string{"faults-worker", "--redis", d.bench.Url, "--key", key, "--volume", volume.Dir,
		"--waiters", strconv.Itoa(b.Waiters), "--lease", b.lease.String()}
	d.start = func() (*rig.Worker, error) { return rig.StartWorker(ctx, std, self.Argv[0], args) }
	for range b.Processes {
		w, err := d.start()
		if err != nil {
			return report, err
		}
		d.workers = append(d.workers, w)
	}
	for _, w := range d.workers {
		if _, err := w.Ready(); err != nil {
			return report, w.Explain(ctx, err)
		}
	}
	if d.from, err = rig.Monotonic(); err != nil {
		return report, err
	}
	if err := d.inject(ctx); err != nil {
		return report, err
	}
	if err := d.finish(ctx); err != nil {
		return report, err
	}
	log, err := volume.ReadLog()
	if err != nil {
		return report, err
	}
	report.Faults = d.injected
	report.Figures = JudgeFaults(FaultRun{
		Span: rig.Span{From: d.from, To: d.from + b.Duration.Nanoseconds()}, Lease: b.lease, Log: log, Down: d.down,
	})
	return report, nil
}

// ReadLog reads all of the log.
func (v FaultVolume) ReadLog() ([]Write, error) {
	file, err := os.Open(v.Path("log"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var all []Write
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		w, err := ParseWrite(lines.Text())
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, lines.Err()
}

func (r FaultReport) Print(w io.Writer, out term.Output) error {
	if !out.IsTable() {
		return out.Document(w, r)
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
	for _, kind := range []string{FaultKill, FaultStop, FaultPubSub, FaultRestart, FaultEmpty} {
		fmt.Fprintf(tw, "%s\t%d\t\t\n", kind, kinds[kind])
		if kind == FaultKill || kind == FaultStop {
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
func (b *Bench) checkFaults(given func(flag string) bool) error {
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
		b.Duration = faultDuration
	}
	if !given("processes") {
		b.Processes = faultProcesses
	}
	b.lease = cmp.Or(b.lease, faultLease)
	switch {
	case b.Processes < 3:
		return fmt.Errorf("--processes is %d: with --faults it must be at least 3, for one is stopped and another killed", b.Processes)
	case b.lease < 500*time.Millisecond:
		return fmt.Errorf("--lease is %v; want at least 500ms", b.lease)
	case b.Duration < 3*b.lease:
		return fmt.Errorf("--duration is %v: with --faults it must be at least three leases, %v", b.Duration, 3*b.lease)
	}
	return nil
}
