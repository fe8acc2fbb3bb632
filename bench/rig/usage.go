package rig

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/redisx"
)

// CPUTime returns the CPU time of a process, in user and kernel mode, in nanoseconds instead of ticks.
func CPUTime(pid int) (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil { // see clock_getcpuclockid(3); 2 is CPUCLOCK_SCHED
		return 0, fmt.Errorf("read the CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// idleShare is the share of a core below which a process is idle: more than what heartbeats take, less than any work.
const idleShare = 0.03

// AwaitIdle waits until a process has used hardly any CPU time for a while.
func AwaitIdle(ctx context.Context, pid int, during time.Duration) error {
	for {
		before, err := CPUTime(pid)
		if err != nil {
			return err
		}
		if !redisx.Pause(ctx, during) {
			return fmt.Errorf("wait for process %d to be idle: %w", pid, context.Cause(ctx))
		}
		after, err := CPUTime(pid)
		if err != nil {
			return err
		}
		if float64(after-before) < idleShare*float64(during) {
			return nil
		}
	}
}

// Memory returns a field of /proc/PID/status, in bytes.
func Memory(pid int, field string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(status), field+":")
	var kB int64
	if _, err := fmt.Sscan(rest, &kB); err != nil || !found {
		return 0, fmt.Errorf("/proc/%d/status has no %s", pid, field)
	}
	return kB << 10, nil
}
