package lock

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
	"lockstep/locking"
)

// holdReport says what keeping leases cost while nothing else happened: as much as renewing them,
// and what both programs do when idle.
type holdReport struct {
	Machine  rig.Machine   `json:"machine"`
	Leases   int           `json:"leases"`
	Lost     int           `json:"lost"`
	Lease    time.Duration `json:"lease_ns"`
	Duration time.Duration `json:"duration_ns"`
	Locker   cpuUse        `json:"locker"`
	Redis    cpuUse        `json:"redis"`
}

// cpuUse is processor time, in all and as a share of one core.
type cpuUse struct {
	Used  time.Duration `json:"used_ns"`
	Share float64       `json:"share_of_a_core"`
}

// runHoldMany holds many leases for the duration.
func (b *Bench) runHoldMany(ctx context.Context, std term.Streams, server *rig.Redis, key string) error {
	report, err := HoldMany(ctx, server, key, b.holdMany, lease10, b.Duration)
	if err != nil {
		return err
	}
	if err := report.Print(std.Stdout, b.out); err != nil {
		return err
	}
	if report.Lost > 0 {
		return fmt.Errorf("%d of %d leases were lost", report.Lost, report.Leases)
	}
	return nil
}

func HoldMany(ctx context.Context, server *rig.Redis, key string, n int, lease, d time.Duration) (holdReport, error) {
	report := holdReport{Machine: server.Machine(), Leases: n, Lease: lease}
	locker, closeLocker, err := openLocker(ctx, server.Server, lease)
	if err != nil {
		return report, err
	}
	defer closeLocker()
	leases := make([]*locking.Lease, n)
	var acquiring errgroup.Group
	acquiring.SetLimit(16)
	for i := range leases {
		acquiring.Go(func() (err error) {
			leases[i], err = locker.Acquire(ctx, locking.Request{Key: goroutineKey(key, i), Operation: "bench"})
			return err
		})
	}
	if err := acquiring.Wait(); err != nil {
		return report, err
	}

	before, err := cpuTimes(ctx, server)
	if err != nil {
		return report, err
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return report, context.Cause(ctx)
	}
	after, err := cpuTimes(ctx, server)
	if err != nil {
		return report, err
	}
	report.Duration = after.at.Sub(before.at)
	use := func(used time.Duration) cpuUse { return cpuUse{used, used.Seconds() / report.Duration.Seconds()} }
	report.Locker, report.Redis = use(after.own-before.own), use(after.redis-before.redis)

	// A lease that was lost says so by its context, or at the latest now.
	lost := make([]bool, n)
	var releasing errgroup.Group
	releasing.SetLimit(16)
	for i, l := range leases {
		releasing.Go(func() error {
			ended := l.Context().Err() != nil
			lost[i] = l.Release(ctx) != nil || ended
			return nil
		})
	}
	_ = releasing.Wait()
	for _, is := range lost {
		if is {
			report.Lost++
		}
	}
	return report, nil
}

// cpuMoment is how much processor time this process and Redis have used by then.
type cpuMoment struct {
	at         time.Time
	own, redis time.Duration
}

func cpuTimes(ctx context.Context, server *rig.Redis) (cpuMoment, error) {
	m := cpuMoment{at: time.Now()}
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return m, fmt.Errorf("read our processor time: %w", err)
	}
	m.own = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	var err error
	m.redis, err = server.Cpu(ctx)
	return m, err
}

func (r holdReport) Print(w io.Writer, out term.Output) error {
	if !out.IsTable() {
		return out.Document(w, r)
	}
	fmt.Fprintf(w, "%s\n%d leases of %v held for %.1f s, %d lost\n\n", r.Machine, r.Leases, r.Lease, r.Duration.Seconds(), r.Lost)
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\tprocessor time, s\tof a core\t")
	fmt.Fprintf(tw, "this process\t%.3f\t%.2f %%\t\n", r.Locker.Used.Seconds(), 100*r.Locker.Share)
	fmt.Fprintf(tw, "redis\t%.3f\t%.2f %%\t\n", r.Redis.Used.Seconds(), 100*r.Redis.Share)
	return tw.Flush()
}
