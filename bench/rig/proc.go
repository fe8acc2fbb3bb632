package rig

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ProcessorTime is what a process has taken, in user and kernel mode; Linux counts it in ticks of 10 ms.
func ProcessorTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may have anything in it
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat makes no sense", pid)
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	kernel, err := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+kernel) * 10 * time.Millisecond, err
}

// ProcessMemory reads a line of a process' status, in bytes.
func ProcessMemory(pid int, name string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(status), name+":")
	var kB int64
	if _, err := fmt.Sscan(rest, &kB); err != nil || !found {
		return 0, fmt.Errorf("/proc/%d/status does not say %s", pid, name)
	}
	return kB << 10, nil
}
