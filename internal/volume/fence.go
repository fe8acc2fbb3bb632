package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/disk"
)

// ErrStale is wrapped by the error of an operation whose fence is lower than the one recorded on the volume,
// because a newer lease holder has worked on the repository.
var ErrStale = errors.New("a newer holder has been here")

const (
	lockPause    = 50 * time.Millisecond // maximum retry interval; locks are held for milliseconds
	lockPatience = 10 * time.Second      // a holder that takes longer is stopped or unreachable
)

// Floor returns the highest fence recorded for repo on the volume, or 0.
func (v *Volume) Floor(repo events.RepoPath) (uint64, error) {
	return v.folder(repo).floor()
}

func (f folder) floor() (uint64, error) {
	content, err := os.ReadFile(f.fence())
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, disk.Error("read the fence", err)
	}
	fence, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 64)
	if err != nil {
		return 0, events.Errorf(events.Retryable, events.ClassVolume,
			"%s is damaged: write a number into it that is higher than any lease's fence", f.fence())
	}
	return fence, nil
}

// record raises the recorded fence to this one on disk, or fails with ErrStale.
func (f folder) record(ctx context.Context, fence uint64) error {
	err := f.recordUnsynced(ctx, fence)
	if err == nil {
		err = disk.Error("record the fence", disk.FlushChanged([]string{f.fence()}, nil))
	}
	return err
}

// recordUnsynced is record without syncing the fence. It must be synced before the names of trees that contain it.
func (f folder) recordUnsynced(ctx context.Context, fence uint64) error {
	err := os.MkdirAll(f.dir, 0o755)
	if errors.Is(err, os.ErrNotExist) { // another repository's holder has deleted the owner's folder, which was empty
		err = os.MkdirAll(f.dir, 0o755)
	}
	if err != nil {
		return disk.Error("create the repository's folder", err)
	}
	unlock, err := lockFile(ctx, f.lock())
	if err != nil {
		return err
	}
	defer unlock()
	floor, err := f.floor()
	if err == nil && floor > 0 {
		err = f.checkFence(fence)
	}
	if err != nil || floor == fence {
		return err
	}
	return disk.Error("record the fence", f.writeFence(fence))
}

// writeFence overwrites the fence in place. Its length never changes, so a power cut leaves the old or the new one.
func (f folder) writeFence(fence uint64) error {
	content := fmt.Appendf(nil, "%020d\n", fence)
	file, err := os.OpenFile(f.fence(), os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return disk.Replace(f.fence(), content)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil && info.Size() != int64(len(content)) { // written by hand
		return disk.Replace(f.fence(), content)
	}
	if err == nil {
		_, err = file.WriteAt(content, 0)
	}
	return err
}

// guarded runs fn under the repository's file lock unless the fence is stale. Newer holders record their
// fence under the same lock, so none can start while fn runs.
func (f folder) guarded(ctx context.Context, fence uint64, fn func() error) error {
	unlock, err := lockFile(ctx, f.lock())
	if err != nil {
		return err
	}
	defer unlock()
	if err := f.checkFence(fence); err != nil {
		return err
	}
	return fn()
}

// checkFence returns an error that wraps ErrStale if a higher fence is recorded, or none any more.
func (f folder) checkFence(fence uint64) error {
	switch floor, err := f.floor(); {
	case err != nil:
		return err
	case floor == 0:
		return events.Errorf(events.Contention, events.ClassBusy, "%w and has removed the repository", ErrStale)
	case floor > fence:
		return events.Errorf(events.Contention, events.ClassBusy, "%w with fence %d; this one is %d", ErrStale, floor, fence)
	}
	return nil
}

// lockFile locks the file at path exclusively, creating it if necessary. It fails when ctx is done, or after
// lockPatience: the holder is probably stopped, and waiting longer would block a worker. The lock ends with
// the process.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, disk.Error("open the lock file", err)
		}
		if err := awaitLock(ctx, file, unix.LOCK_EX); err != nil {
			_ = file.Close()
			return nil, err
		}
		opened, _ := file.Stat()
		now, err := os.Lstat(path)
		if err == nil && os.SameFile(opened, now) {
			return func() { _ = file.Close() }, nil
		}
		_ = file.Close() // [Volume.Forget] has deleted it meanwhile
	}
}

// awaitLock locks a file, shared or exclusively. It fails when ctx is done, or after lockPatience.
func awaitLock(ctx context.Context, file *os.File, how int) error {
	path, begun := file.Name(), time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, lockPause) {
		err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return disk.Error("lock "+path, err)
		case time.Since(begun) > lockPatience:
			return events.Errorf(events.Contention, events.ClassBusy, "another process has locked %s for more than %v: "+
				"if it is stopped, resume or kill it (lsof %s)", path, lockPatience, path)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the lock on %s: %w", path, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// confirm returns nil if the caller still holds its leases according to check, which is optional.
func (v *Volume) confirm(ctx context.Context, check func(context.Context) error) error {
	if check != nil {
		if err := check(ctx); err != nil {
			return fmt.Errorf("confirm the lease: %w", err)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("confirm the lease: %w", context.Cause(ctx))
	}
	v.done("confirmed")
	return nil
}
