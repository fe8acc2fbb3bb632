package e2e

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/term"
)

func TestSystemdIsNotifiedOfState(t *testing.T) {
	t.Parallel()
	redisServer := redistest.Start(t)
	redisServer.Stop()
	socket, next := proctest.NotifySocket(t)
	cmd := proctest.Command(t, "serve", "--redis", redisServer.URL(), "--root", t.TempDir(), "--roles", "worker")
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket)
	p := proctest.StartCommand(t, cmd)
	proctest.AwaitNotify(t, next, "STATUS=not ready; redis: does not answer; changes: waiting for Redis")
	redisServer.Restart()
	if message := proctest.AwaitNotify(t, next, "READY=1"); !strings.Contains(message, "STATUS=ready") {
		t.Errorf("message %q", message)
	}
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	proctest.AwaitNotify(t, next, "STOPPING=1")
	if code := p.AwaitExit(time.Minute); code != term.ExitDone {
		t.Errorf("exit code %d", code)
	}
}
