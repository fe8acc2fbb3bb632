package app

import (
	"context"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"lockstep/internal/server"
)

// systemdNotifier reports to systemd with the sd_notify(3) protocol: readiness, stopping, a status line and,
// if systemd asks for them, watchdog keep-alives.
type systemdNotifier struct {
	socket      string        // NOTIFY_SOCKET
	watchdog    time.Duration // timeout after which systemd expects a keep-alive; 0 disables keep-alives
	live, ready *server.Health
	log         *slog.Logger
}

const (
	notifyUntilReady = 200 * time.Millisecond // interval of reports until the process is ready
	notifyWhenReady  = 10 * time.Second       // afterwards; half the watchdog timeout if that is shorter
)

// watchdogTimeout returns the timeout that systemd set for this process, or 0 if none.
func watchdogTimeout(getenv func(string) string) time.Duration {
	if pid := getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	usec, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || usec < 0 {
		return 0
	}
	return time.Duration(usec) * time.Microsecond
}

// Run reports until ctx is done. The process begins to stop when running ends.
func (s systemdNotifier) Run(ctx, running context.Context) {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.socket, Net: "unixgram"})
	if err != nil {
		s.log.WarnContext(ctx, "cannot notify systemd; is NOTIFY_SOCKET right?", "error", err)
		return
	}
	defer conn.Close()
	interval := notifyWhenReady
	if s.watchdog > 0 {
		interval = min(interval, s.watchdog/2)
	}
	stopping, wasReady, failed := running.Done(), false, false
	for {
		report := s.ready.Report(ctx)
		words := []string{"STATUS=" + statusLine(report)}
		if report.OK && !wasReady {
			wasReady = true
			words = append(words, "READY=1")
		}
		if running.Err() != nil {
			stopping = nil
			words = append(words, "STOPPING=1")
		}
		if s.watchdog > 0 && s.live.Report(ctx).OK {
			words = append(words, "WATCHDOG=1")
		}
		if _, err := conn.Write([]byte(strings.Join(words, "\n"))); err != nil && !failed {
			failed = true
			s.log.WarnContext(ctx, "cannot notify systemd", "error", err)
		}
		wait := interval
		if !wasReady {
			wait = min(interval, notifyUntilReady)
		}
		select {
		case <-ctx.Done():
			if stopping != nil { // ctx and running ended at the same time
				_, _ = conn.Write([]byte("STOPPING=1"))
			}
			return
		case <-stopping:
		case <-time.After(wait):
		}
	}
}

// statusLine formats a report for systemctl status.
func statusLine(report server.Report) string {
	text := "not ready"
	if report.OK {
		text = "ready"
	}
	for _, c := range report.Checks {
		if !c.OK {
			text += "; " + c.Name + ": " + c.Reason
		}
	}
	return text
}
