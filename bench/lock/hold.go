package lock

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lockstep/bench/rig"
	"lockstep/internal/app"
	"lockstep/locking"
)

// HoldReport is the cost of held leases: renewals, and the CPU time of both programs when idle.
type HoldReport struct {
	Leases   int           `json:"leases"`
	Lost     int           `json:"lost"`
	Lease    time.Duration `json:"lease_ns"`
	Duration time.Duration `json:"duration_ns"`
	Locker   usage         `json:"locker"`
	Redis    usage         `json:"redis"`
}

// usage is CPU time, also as a share of one core.
type usage struct {
	Used  time.Duration `json:"used_ns"`
	Share float64       `json:"share_of_a_core"`
}

// Verdict returns an error if a lease was lost.
func (r HoldReport) Verdict() error { return rig.Faults(rig.Fault{What: "leases lost", Count: r.Lost}) }

// holdMany holds n leases for a duration.
func holdMany(ctx context.Context, server *rig.Redis, key string, n int, lease, d time.Duration) (HoldReport, error) {
	report := HoldReport{Leases: n, Lease: lease}
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

	before, err := now(ctx, server)
	if err != nil {
		return report, err
	}
	if !app.Sleep(ctx, d) {
		return report, context.Cause(ctx)
	}
	after, err := now(ctx, server)
	if err != nil {
		return report, err
	}
	report.Duration = after.at.Sub(before.at)
	use := func(used time.Duration) usage { return usage{used, used.Seconds() / report.Duration.Seconds()} }
	report.Locker, report.Redis = use(after.own-before.own), use(after.redis-before.redis)

	var lost atomic.Int64
	var releasing errgroup.Group
	releasing.SetLimit(16)
	for _, l := range leases {
		releasing.Go(func() error {
			if ended := l.Context().Err() != nil; l.Release(ctx) != nil || ended {
				lost.Add(1)
			}
			return nil
		})
	}
	_ = releasing.Wait()
	report.Lost = int(lost.Load())
	return report, nil
}

// moment is the CPU time that this process and Redis have used so far.
type moment struct {
	at         time.Time
	own, redis time.Duration
}

func now(ctx context.Context, server *rig.Redis) (moment, error) {
	m := moment{at: time.Now()}
	var self unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &self); err != nil {
		return m, fmt.Errorf("read the processor time of this process: %w", err)
	}
	m.own = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	var err error
	m.redis, err = server.CPU(ctx)
	return m, err
}

// Table prints the report as text.
func (r HoldReport) Table(w io.Writer) error {
	fmt.Fprintf(w, "%d leases of %v held for %.1f s, %d lost\n\n", r.Leases, r.Lease, r.Duration.Seconds(), r.Lost)
	tw := rig.NewTable(w)
	fmt.Fprintln(tw, "\tprocessor time, s\tof a core\t")
	fmt.Fprintf(tw, "this process\t%.3f\t%.2f %%\t\n", r.Locker.Used.Seconds(), 100*r.Locker.Share)
	fmt.Fprintf(tw, "redis\t%.3f\t%.2f %%\t\n", r.Redis.Used.Seconds(), 100*r.Redis.Share)
	return tw.Flush()
}
