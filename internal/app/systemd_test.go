package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/internal/proctest"
	"lockstep/internal/server"
)

func TestWatchdogKeepAlivesStopWhileProcessHangs(t *testing.T) {
	socket, next := proctest.NotifySocket(t)
	var hung atomic.Bool
	live := server.NewHealth(server.Check{Name: "changes", Now: func() error {
		if hung.Load() {
			return errors.New("hanging")
		}
		return nil
	}})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s := systemdNotifier{socket: socket, watchdog: 2 * time.Millisecond, live: live, log: slog.New(slog.DiscardHandler)}
		s.Run(ctx, t.Context())
	}()
	proctest.AwaitNotify(t, next, "WATCHDOG=1")
	hung.Store(true)
	for range 1000 { // messages sent before the hang
		if !strings.Contains(next(), "WATCHDOG=1") {
			break
		}
	}
	for range 20 {
		if message := next(); strings.Contains(message, "WATCHDOG=1") {
			t.Fatalf("message %q from a hanging process", message)
		}
	}
	hung.Store(false)
	proctest.AwaitNotify(t, next, "WATCHDOG=1")
	stop()
	<-ended
}

func TestWatchdogTimeoutIgnoresOtherProcesses(t *testing.T) {
	for name, tc := range map[string]struct {
		pid, usec string
		want      time.Duration
	}{
		"this process":    {strconv.Itoa(os.Getpid()), "30000000", 30 * time.Second},
		"any process":     {"", "30000000", 30 * time.Second},
		"another process": {"1", "30000000", 0},
		"none":            {"", "", 0},
		"invalid":         {"", "-5", 0},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{"WATCHDOG_PID": tc.pid, "WATCHDOG_USEC": tc.usec}
			if got := watchdogTimeout(func(name string) string { return env[name] }); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// A process without a worker stops serving as soon as it is stopped, so both contexts end together.
func TestSystemdIsNotifiedOfStopWithoutWorker(t *testing.T) {
	for range 20 { // which context is noticed first is random
		socket, next := proctest.NotifySocket(t)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			systemdNotifier{socket: socket, log: slog.New(slog.DiscardHandler)}.Run(ctx, ctx)
		}()
		proctest.AwaitNotify(t, next, "READY=1")
		stop()
		<-ended
		proctest.AwaitNotify(t, next, "STOPPING=1")
	}
}
