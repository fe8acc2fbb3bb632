package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"lockstep/bench/rig"
)

// Defaults for --faults.
const (
	faultLease     = 2 * time.Second
	faultDuration  = 15 * time.Second
	faultProcesses = 6
)

// FaultReport is the result of a run with faults.
type FaultReport struct {
	Processes int             `json:"processes"`
	Waiters   int             `json:"waiters"`
	Lease     time.Duration   `json:"lease_ns"`
	Duration  time.Duration   `json:"duration_ns"`
	Figures   FaultFigures    `json:"figures"`
	Faults    []injectedFault `json:"faults"`

	volume volume
}

// runFaults lets processes contend for one key while faults are injected, and judges the log of what they wrote.
func (b *bench) runFaults(ctx context.Context, env *rig.Env, key string) (rig.Report, error) {
	dir, err := os.MkdirTemp("", "lockstep-bench-volume-")
	if err != nil {
		return nil, err
	}
	report, err := b.contendWithFaults(ctx, env, volume{dir}, key)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("bench with faults: %w", err)
	}
	return report, nil
}

// Verdict returns an error if a guarantee of the lock was broken, and keeps the log; otherwise it removes the log.
func (r FaultReport) Verdict() error {
	if err := r.Figures.Err(); err != nil {
		return fmt.Errorf("bench with faults: %w\nthe log is in %s", err, r.volume.dir)
	}
	return os.RemoveAll(r.volume.dir)
}

func (b *bench) contendWithFaults(ctx context.Context, env *rig.Env, v volume, key string) (FaultReport, error) {
	report := FaultReport{Processes: b.processes, Waiters: b.waiters, Lease: b.lease, Duration: b.duration, volume: v}
	self, err := rig.Contestants("faults-worker", nil)
	if err != nil {
		return report, err
	}
	d := &faultDriver{bench: b, volume: v, busy: map[*rig.Worker]bool{}}
	if d.redis, err = env.OpenRedis(ctx); err != nil {
		return report, err
	}

	args := []string{
		"--redis", d.redis.URL, "--key", key, "--volume", v.dir, "--waiters", strconv.Itoa(b.waiters), "--lease", b.lease.String(),
	}
	d.start = func() (*rig.Worker, error) { return env.StartWorker(ctx, self[0], args...) }
	defer func() { d.workers.Kill() }()
	if d.workers, _, err = env.StartWorkers(ctx, b.processes, self[0], args...); err != nil {
		return report, err
	}
	d.from = rig.Monotonic()
	if err := d.inject(ctx); err != nil {
		return report, err
	}
	if err := d.finish(ctx); err != nil {
		return report, err
	}
	log, err := v.readLog()
	if err != nil {
		return report, err
	}
	report.Faults = d.injected
	report.Figures = judgeFaults(faultRun{
		Span: rig.Span{From: d.from, To: d.from + b.duration.Nanoseconds()}, Lease: b.lease, Log: log, Down: d.down,
	})
	return report, nil
}

// readLog reads the log.
func (v volume) readLog() (all []write, err error) {
	log, err := os.ReadFile(v.path("log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(log)) {
		w, err := parseWrite(line)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

// Table prints the report as text.
func (r FaultReport) Table(w io.Writer) error {
	fmt.Fprintf(w, "%d processes × %d waiters, one key, lease %v, %v\n\n", r.Processes, r.Waiters, r.Lease, r.Duration)
	kinds, holders := map[string]int{}, map[string]int{}
	for _, f := range r.Faults {
		kinds[f.Kind]++
		if f.Holder {
			holders[f.Kind]++
		}
	}
	f := r.Figures
	tw := rig.NewTable(w)
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

// checkFaults sets the defaults of a run with faults, and returns an error for flags that exclude it.
func (b *bench) checkFaults(given func(flag string) bool) error {
	if !b.faults {
		if given("lease") {
			return errors.New("--lease requires --faults")
		}
		return nil
	}
	for _, flag := range []string{"peer", "hold", "rounds"} {
		if given(flag) {
			return fmt.Errorf("--faults excludes --%s: it restarts a private redis-server, and runs once", flag)
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
		return fmt.Errorf("--processes is %d; with --faults it must be at least 3, because one is stopped and another killed", b.processes)
	case b.lease < 500*time.Millisecond:
		return fmt.Errorf("--lease is %v; want at least 500ms", b.lease)
	case b.duration < 3*b.lease:
		return fmt.Errorf("--duration is %v; with --faults it must be at least three leases, %v", b.duration, 3*b.lease)
	}
	return nil
}
