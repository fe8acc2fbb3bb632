package e2e

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/cli/term"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

func TestSystemdIsToldHowTheProcessIs(t *testing.T) {
	redisServer := redistest.Start(t)
	redisServer.Stop()
	socket, next := proctest.Systemd(t)
	cmd := proctest.Command(t, "serve", "--redis", redisServer.URL(), "--root", t.TempDir(), "--roles", "worker")
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket)
	p := proctest.StartCommand(t, cmd)
	proctest.Awaits(t, next, "STATUS=not ready; redis: does not answer; changes: waiting for Redis")
	redisServer.Restart()
	if message := proctest.Awaits(t, next, "READY=1"); !strings.Contains(message, "STATUS=ready") {
		t.Errorf("message %q", message)
	}
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	proctest.Awaits(t, next, "STOPPING=1")
	if code := p.Ended(time.Minute); code != term.ExitDone {
		t.Errorf("exit code %d", code)
	}
}
