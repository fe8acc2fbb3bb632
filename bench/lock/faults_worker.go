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

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"lockstep/bench/rig"
	"lockstep/internal/redisx"
	"lockstep/locking"
)

// volume simulates the volume that a lock protects. Each write takes the guard, a file lock, and is refused if a higher fence has
// written before.
type volume struct{ dir string }

func (v volume) path(name string) string { return filepath.Join(v.dir, name) }

// guarded calls f under the guard.
func (v volume) guarded(f func() error) error {
	guard, err := os.OpenFile(v.path("guard"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer guard.Close() // unlocks it
	for {
		switch err := unix.Flock(int(guard.Fd()), unix.LOCK_EX); {
		case err == nil:
			return f()
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("lock %s: %w", guard.Name(), err)
		}
	}
}

// highest returns the highest fence that has written. It may be called outside the guard.
func (v volume) highest() (uint64, error) {
	text, err := os.ReadFile(v.path("fence"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(text), 10, 64)
}

func (v volume) record(fence uint64) error {
	if err := os.WriteFile(v.path("fence.tmp"), strconv.AppendUint(nil, fence, 10), 0o600); err != nil {
		return err
	}
	return os.Rename(v.path("fence.tmp"), v.path("fence"))
}

// write appends the begin or the end of a grant to the log, accepted or refused.
func (v volume) write(fence uint64, end bool, waiter int) error {
	return v.guarded(func() error {
		highest, err := v.highest()
		if err != nil {
			return err
		}
		if fence > highest {
			if err := v.record(fence); err != nil {
				return err
			}
		}
		log, err := os.OpenFile(v.path("log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(log, writeFormat, rig.Monotonic(), fence, end, fence < highest, os.Getpid(), waiter)
		return errors.Join(err, log.Close())
	})
}

// runOnVolume is one process of a run with faults. It prints "ready" and works until its standard input ends.
func (w worker) runOnVolume(ctx context.Context, server redisx.Server, stdin io.Reader, stdout io.Writer) error {
	locker, closeLocker, err := newLocker(ctx, server, w.lease) // without a ping: Redis may be down
	if err != nil {
		return err
	}
	defer closeLocker()
	if err := rig.PrintReady(stdout); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for i := range w.waiters {
		g.Go(func() error { return w.work(ctx, locker, i) })
	}
	go func() { // ends with the input or the process
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	return g.Wait()
}

// work acquires, writes its begin and its end, and releases, until ctx ends.
func (w worker) work(ctx context.Context, locker *locking.Locker, waiter int) error {
	req := locking.Request{Key: "bench", Job: strconv.Itoa(waiter), Operation: "bench"}
	for ctx.Err() == nil {
		var err error
		if req.Floor, err = w.volume.highest(); err != nil {
			return err
		}
		lease, err := locker.Acquire(ctx, req)
		switch {
		case errors.Is(err, locking.ErrTimeout), errors.Is(err, locking.ErrUnavailable), err != nil && ctx.Err() != nil:
			continue
		case err != nil:
			return err
		}
		if err := w.volume.write(lease.Fence(), false, waiter); err != nil {
			return err
		}
		redisx.Pause(lease.Context(), rand.N(3*time.Millisecond))
		// Write even if the lease is lost: the guard must refuse it.
		if err := w.volume.write(lease.Fence(), true, waiter); err != nil {
			return err
		}
		_ = lease.Release(ctx) // a lease that it cannot release expires
	}
	return nil
}
