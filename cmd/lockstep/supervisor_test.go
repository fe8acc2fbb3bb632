package main

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/redistest"
)

func TestSystemdIsToldHowTheProcessIs(t *testing.T) {
	redisServer := redistest.Start(t)
	redisServer.Stop()
	socket, next := systemd(t)
	cmd := command(t, "serve", "--redis", redisServer.URL(), "--root", t.TempDir(), "--roles", "worker")
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket)
	p := startCommand(t, cmd)
	awaits(t, next, "STATUS=not ready; redis: it does not answer; changes: it waits for Redis")
	redisServer.Restart()
	if message := awaits(t, next, "READY=1"); !strings.Contains(message, "STATUS=ready") {
		t.Errorf("message %q", message)
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	awaits(t, next, "STOPPING=1")
	if code := p.ended(time.Minute); code != exitDone {
		t.Errorf("exit code %d", code)
	}
}
