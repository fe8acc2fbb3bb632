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

// supervisor tells systemd how the process is, by the protocol of sd_notify(3): when it is ready for the first time, when
// it stops, in a line for systemctl status, and, where systemd wants to hear of it, that it is alive.
type supervisor struct {
	socket      string        // NOTIFY_SOCKET
	watchdog    time.Duration // within which systemd wants a sign of life; 0: it does not
	live, ready *server.Health
	log         *slog.Logger
}

const (
	firstLook = 200 * time.Millisecond // between two looks until the process is ready
	laterLook = 10 * time.Second       // between two afterwards, or half the watchdog's time if that is less
)

// watchdogOf reads what systemd says of its watchdog.
func watchdogOf(getenv func(string) string) time.Duration {
	if pid := getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0 // it is another process's
	}
	usec, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || usec < 0 {
		return 0
	}
	return time.Duration(usec) * time.Microsecond
}

// Run tells until ctx is done. The process begins to stop when running ends.
func (s supervisor) Run(ctx, running context.Context) {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.socket, Net: "unixgram"})
	if err != nil {
		s.log.WarnContext(ctx, "systemd cannot be told how this process is; is NOTIFY_SOCKET right?", "error", err)
		return
	}
	defer conn.Close()
	later := laterLook
	if s.watchdog > 0 {
		later = min(later, s.watchdog/2)
	}
	stopping, wasReady, failed := running.Done(), false, false
	for {
		report := s.ready.Report(ctx)
		words := []string{"STATUS=" + status(report)}
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
			s.log.WarnContext(ctx, "systemd cannot be told how this process is", "error", err)
		}
		wait := later
		if !wasReady {
			wait = min(later, firstLook)
		}
		select {
		case <-ctx.Done():
			if stopping != nil { // both came at once
				_, _ = conn.Write([]byte("STOPPING=1"))
			}
			return
		case <-stopping:
		case <-time.After(wait):
		}
	}
}

// status is a report in one line.
func status(report server.Report) string {
	var wrong []string
	for _, c := range report.Checks {
		if !c.OK {
			wrong = append(wrong, c.Name+": "+c.Reason)
		}
	}
	switch {
	case report.OK && len(wrong) == 0:
		return "ready"
	case report.OK:
		return "ready; " + strings.Join(wrong, "; ")
	}
	return "not ready; " + strings.Join(wrong, "; ")
}
