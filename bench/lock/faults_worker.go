package lock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lockstep/bench/rig"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/redisx"
	"lockstep/locking"
)

// FaultVolume stands for the volume that a lock protects. Nobody writes to it but under its guard,
// which is one lock of the file system, and nobody whose fence is lower than one it has seen.
type FaultVolume struct{ Dir string }

func (v FaultVolume) Path(name string) string { return filepath.Join(v.Dir, name) }

// Guarded calls f while nobody else is in the guard, in this process or any other.
func (v FaultVolume) Guarded(f func() error) error {
	file, err := os.OpenFile(v.Path("guard"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close() // and so unlock it
	for {
		switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX); {
		case err == nil:
			return f()
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
	}
}

// Highest is the highest fence seen. It may be read outside the guard.
func (v FaultVolume) Highest() (uint64, error) {
	text, err := os.ReadFile(v.Path("fence"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(text), 10, 64)
}

func (v FaultVolume) record(fence uint64) error {
	if err := os.WriteFile(v.Path("fence.tmp"), strconv.AppendUint(nil, fence, 10), 0o600); err != nil {
		return err
	}
	return os.Rename(v.Path("fence.tmp"), v.Path("fence"))
}

// Write appends the begin or the end of a grant to the log, as accepted or as refused.
func (v FaultVolume) Write(fence uint64, end bool, goroutine int) error {
	return v.Guarded(func() error {
		highest, err := v.Highest()
		if err != nil {
			return err
		}
		if fence > highest {
			if err := v.record(fence); err != nil {
				return err
			}
		}
		w := Write{Fence: fence, End: end, Refused: fence < highest, PID: os.Getpid(), Goroutine: goroutine}
		if w.At, err = rig.Monotonic(); err != nil {
			return err
		}
		log, err := os.OpenFile(v.Path("log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		_, err = io.WriteString(log, w.Line())
		return errors.Join(err, log.Close())
	})
}

// last is the newest write in the log, if there is one. The caller is in the guard.
func (v FaultVolume) last() (Write, bool, error) {
	log, err := os.Open(v.Path("log"))
	if errors.Is(err, os.ErrNotExist) {
		return Write{}, false, nil
	}
	if err != nil {
		return Write{}, false, err
	}
	defer log.Close()
	if _, err := log.Seek(-WriteSize, io.SeekEnd); err != nil {
		return Write{}, false, err
	}
	line, err := io.ReadAll(log)
	if err != nil {
		return Write{}, false, err
	}
	w, err := ParseWrite(string(line))
	return w, err == nil, err
}

// faultWorker is one process of a run with faults. It prints "ready" and works until its standard
// input ends.
type faultWorker struct {
	redis, key string
	volume     FaultVolume
	waiters    int
	lease      time.Duration
}

func NewFaultsWorkerCommand(std term.Streams) *cobra.Command {
	var w faultWorker
	cmd := &cobra.Command{
		Use:    "faults-worker",
		Short:  "One process of bench lock --faults",
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
	flags.StringVar(&w.volume.Dir, "volume", "", "`folder` that the lock protects")
	flags.IntVar(&w.waiters, "waiters", 1, "how many goroutines contend")
	flags.DurationVar(&w.lease, "lease", faultLease, "how long a lease outlives its holder")
	return cmd
}

func (w faultWorker) Run(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	server, err := redisx.Parse(w.redis, "")
	if err != nil {
		return term.UsageError(err)
	}
	locker, closeLocker, err := newBenchLocker(ctx, server, w.lease) // Redis may well be away
	if err != nil {
		return err
	}
	defer closeLocker()
	if _, err := fmt.Fprintln(stdout, "ready", app.ReadBuild().Version); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for i := range w.waiters {
		g.Go(func() error { return w.work(ctx, locker, i) })
	}
	go func() { // a read that nothing but the end of input, or of the process, ends
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	return g.Wait()
}

// work acquires, writes its begin and its end, and releases, until ctx ends.
func (w faultWorker) work(ctx context.Context, locker *locking.Locker, goroutine int) error {
	req := locking.Request{Key: w.key, Job: strconv.Itoa(goroutine), Operation: "bench"}
	for ctx.Err() == nil {
		var err error
		if req.Floor, err = w.volume.Highest(); err != nil {
			return err
		}
		lease, err := locker.Acquire(ctx, req)
		switch {
		case errors.Is(err, locking.ErrTimeout), errors.Is(err, locking.ErrUnavailable), err != nil && ctx.Err() != nil:
			continue
		case err != nil:
			return err
		}
		if err := w.volume.Write(lease.Fence(), false, goroutine); err != nil {
			return err
		}
		app.Sleep(lease.Context(), rand.N(3*time.Millisecond))
		// Also when the lease is lost: a holder that does not look is what the guard is for.
		if err := w.volume.Write(lease.Fence(), true, goroutine); err != nil {
			return err
		}
		_ = lease.Release(ctx) // what Redis does not hear of lapses
	}
	return nil
}
