package rig

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/internal/cli/term"
	"lockstep/internal/gitserver"
)

// Machine describes the environment of a measurement.
type Machine struct {
	Git      string `json:"git,omitempty"`   // version, if Git takes part
	Redis    string `json:"redis,omitempty"` // version, if Redis takes part
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Cores    int    `json:"cores"`
}

func newMachine() Machine {
	return Machine{Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU()}
}

// GitMachine describes this machine and its Git. It returns a usage error if there is no git.
func GitMachine(ctx context.Context) (Machine, error) {
	version, err := gitserver.Git(ctx, "/", "", "version")
	if err != nil {
		return Machine{}, term.UsageError(fmt.Errorf("git is required: %w", err))
	}
	m := newMachine()
	m.Git = strings.TrimPrefix(version, "git version ")
	return m, nil
}

func (m Machine) String() string {
	var parts []string
	if m.Git != "" {
		parts = append(parts, "git "+m.Git)
	}
	if m.Redis != "" {
		parts = append(parts, "Redis "+m.Redis)
	}
	return strings.Join(append(parts, fmt.Sprintf("%s %s, %d cores", m.Go, m.Platform, m.Cores)), ", ")
}

// Monotonic reads the clock that all processes of this machine share, in nanoseconds.
func Monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // available on every Linux
	}
	return t.Nano()
}

// Span is the time between two values of Monotonic.
type Span struct{ From, To int64 }

// Overlap returns how much of s lies in o.
func (s Span) Overlap(o Span) time.Duration {
	return max(0, time.Duration(min(s.To, o.To)-max(s.From, o.From)))
}
