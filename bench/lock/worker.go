package lock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"lockstep/bench/rig"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/redisx"
	"lockstep/locking"
)

// What locks are measured with: the defaults of the package, and a prefix nobody else uses.
const (
	lease10     = 10 * time.Second
	benchPrefix = "lockstep-bench:{0}:"
)

// lockWorker is one process of a contest. It speaks the worker protocol: it prints "ready" and its
// version, waits for a newline, contends for the duration, and prints a line for each grant.
type lockWorker struct {
	redis, key     string
	waiters        int
	hold, duration time.Duration
}

func NewWorkerCommand(std term.Streams) *cobra.Command {
	var w lockWorker
	cmd := &cobra.Command{
		Use:    "lock-worker",
		Short:  "One process of bench lock",
		Hidden: true,
		Args:   term.WrongUse(term.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			app.SilenceRedis()
			return w.Run(cmd.Context(), cmd.InOrStdin(), std.Stdout)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&w.redis, "redis", "", "`URL` of the Redis to use")
	flags.StringVar(&w.key, "key", "", "what to lock")
	flags.IntVar(&w.waiters, "waiters", 1, "how many goroutines contend")
	flags.DurationVar(&w.hold, "hold", 2*time.Millisecond, "how long each grant is held")
	flags.DurationVar(&w.duration, "duration", time.Second, "how long to go on asking")
	return cmd
}

func (w lockWorker) Run(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	server, err := redisx.Parse(w.redis, "")
	if err != nil {
		return term.UsageError(err)
	}
	locker, closeLocker, err := openLocker(ctx, server, lease10)
	if err != nil {
		return err
	}
	defer closeLocker()
	if _, err := fmt.Fprintln(stdout, "ready", app.ReadBuild().Version); err != nil {
		return err
	}
	if _, err := bufio.NewReader(stdin).ReadString('\n'); err != nil {
		return fmt.Errorf("wait for the start: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(w.duration, cancel).Stop()

	grants := make([][]Grant, w.waiters) // printed at the end: not to measure the pipe
	var g errgroup.Group
	for i := range grants {
		g.Go(func() (err error) {
			grants[i], err = w.Contend(ctx, locker, i)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	out := bufio.NewWriter(stdout)
	for _, of := range grants {
		for _, g := range of {
			fmt.Fprintln(out, g.Waiter, g.Asked, g.Granted, g.Released)
		}
	}
	return out.Flush()
}

// Contend acquires, holds and releases until ctx ends.
func (w lockWorker) Contend(ctx context.Context, locker *locking.Locker, waiter int) ([]Grant, error) {
	var grants []Grant
	req := locking.Request{Key: w.key, Job: strconv.Itoa(waiter), Operation: "bench", Wait: w.duration + time.Minute}
	for ctx.Err() == nil {
		g := Grant{Waiter: waiter}
		var err error
		if g.Asked, err = rig.Monotonic(); err != nil {
			return nil, err
		}
		lease, err := locker.Acquire(ctx, req)
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			break
		}
		if err != nil {
			return nil, err
		}
		if g.Granted, err = rig.Monotonic(); err != nil {
			return nil, err
		}
		time.Sleep(w.hold)
		if g.Released, err = rig.Monotonic(); err != nil {
			return nil, err
		}
		if err := lease.Release(ctx); err != nil {
			return nil, err
		}
		grants = append(grants, g)
	}
	return grants, nil
}

// openLocker makes a Locker as the service does, with a client each for scripts and for
// messages, and makes sure that Redis is there.
func openLocker(ctx context.Context, server redisx.Server, lease time.Duration) (*locking.Locker, func(), error) {
	client := server.Open()
	err := client.Ping(ctx).Err()
	_ = client.Close()
	if err != nil {
		return nil, nil, redisx.Explain(server, err)
	}
	return newBenchLocker(ctx, server, lease)
}

// newBenchLocker is openBenchLocker without that.
func newBenchLocker(ctx context.Context, server redisx.Server, lease time.Duration) (*locking.Locker, func(), error) {
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
		_ = locker.Close(ctx) // what is still out lapses
		closeClients()
	}, nil
}
