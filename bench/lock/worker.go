package lock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"lockstep/bench/rig"
	"lockstep/internal/redisx"
	"lockstep/internal/term"
	"lockstep/locking"
)

// The settings of measured locks: the default lease of the package, and a prefix for benchmarks.
const (
	leaseTime   = 10 * time.Second
	benchPrefix = "lockstep-bench:{0}:"
)

// worker is one process of a contest. It speaks the worker protocol of bench/README.md.
type worker struct {
	key            string
	waiters        int
	hold, duration time.Duration

	// Only of a run with faults.
	volume volume
	lease  time.Duration
}

// NewWorkerCommand returns the hidden command of a worker.
func NewWorkerCommand(std term.Streams) *cobra.Command {
	var w worker
	cmd := rig.WorkerCommand(&cobra.Command{
		Use:   "lock-worker",
		Short: "One process of bench lock",
	}, term.NoArgs, func(cmd *cobra.Command, _ []string, server redisx.Server) error {
		if w.volume.dir != "" {
			return w.runOnVolume(cmd.Context(), server, cmd.InOrStdin(), std.Stdout)
		}
		return w.run(cmd.Context(), server, cmd.InOrStdin(), std.Stdout)
	})
	flags := cmd.Flags()
	flags.StringVar(&w.key, "key", "", "key to lock")
	flags.IntVar(&w.waiters, "waiters", 1, "number of goroutines that contend")
	flags.DurationVar(&w.hold, "hold", 2*time.Millisecond, "how long to hold each grant")
	flags.DurationVar(&w.duration, "duration", time.Second, "how long to contend")
	flags.StringVar(&w.volume.dir, "volume", "", "`folder` that the lock protects, in a run with faults")
	flags.DurationVar(&w.lease, "lease", 2*time.Second, "how long a lease outlives its holder, in a run with faults")
	return cmd
}

func (w worker) run(ctx context.Context, server redisx.Server, stdin io.Reader, stdout io.Writer) error {
	locker, closeLocker, err := newLocker(ctx, server, leaseTime)
	if err != nil {
		return err
	}
	defer closeLocker()
	if err := rig.AwaitStart(bufio.NewReader(stdin), stdout); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(w.duration, cancel).Stop()

	grants := make([][]grant, w.waiters) // printed at the end, so that the pipe is not measured
	var g errgroup.Group
	for i := range grants {
		g.Go(func() (err error) {
			grants[i], err = w.contend(ctx, locker, i)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	out := bufio.NewWriter(stdout)
	for _, g := range slices.Concat(grants...) {
		fmt.Fprintln(out, g.Waiter, g.Asked, g.Granted, g.Released)
	}
	return out.Flush()
}

// contend acquires, holds and releases until ctx ends.
func (w worker) contend(ctx context.Context, locker *locking.Locker, waiter int) ([]grant, error) {
	var grants []grant
	req := locking.Request{Key: w.key, Job: strconv.Itoa(waiter), Operation: "bench", Wait: w.duration + time.Minute}
	for ctx.Err() == nil {
		g := grant{Waiter: waiter, Asked: rig.Monotonic()}
		lease, err := locker.Acquire(ctx, req)
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			break
		}
		if err != nil {
			return nil, err
		}
		g.Granted = rig.Monotonic()
		time.Sleep(w.hold)
		g.Released = rig.Monotonic()
		if err := lease.Release(ctx); err != nil {
			return nil, err
		}
		grants = append(grants, g)
	}
	return grants, nil
}

// newLocker returns a Locker as the service has one, with separate clients for scripts and for messages.
func newLocker(ctx context.Context, server redisx.Server, lease time.Duration) (*locking.Locker, func(), error) {
	client, pubsub := server.Open(), server.Open()
	closeClients := func() { _, _ = client.Close(), pubsub.Close() }
	locker, err := locking.New(locking.Config{Redis: client, PubSub: pubsub, Prefix: benchPrefix, Lease: lease})
	if err != nil {
		closeClients()
		return nil, nil, err
	}
	return locker, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = locker.Close(ctx) // leases that it cannot release expire
		closeClients()
	}, nil
}
