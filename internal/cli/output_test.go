package cli

import (
	"context"
	"strings"
	"testing"

	"lockstep/internal/logtest"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/status"
	"lockstep/internal/term"
)

func TestStatusWatchRedraws(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	terminal, stderr := openPTY(t), &logtest.Buffer{}
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	ended := make(chan int, 1)
	args := []string{"status", "--watch", "--redis", server.URL()}
	go func() { ended <- Run(ctx, args, term.Streams{Stdout: terminal.File, Stderr: stderr}) }()
	proctest.Eventually(t, func() bool { return strings.Count(terminal.Output.String(), "\x1b[H") >= 2 }, "a second screen")
	if shown := terminal.Output.String(); !strings.Contains(shown, "no worker takes changes") {
		t.Errorf("%q", shown)
	}
	if server.Real { // survives an outage of Redis
		server.Stop()
		proctest.Eventually(t, func() bool { return strings.Contains(stderr.String(), "redis is unavailable") }, "an error without Redis")
		before := strings.Count(terminal.Output.String(), "no worker takes changes")
		server.Restart()
		proctest.Eventually(t, func() bool { return strings.Count(terminal.Output.String(), "no worker takes changes") > before }, "a screen with Redis")
	}
	interrupt()
	if code := <-ended; code != term.ExitDone {
		t.Errorf("exit code %d", code)
	}

	follower := proctest.Start(t, "status", "--watch", "-o", "json", "--redis", server.URL())
	follower.AwaitLog("}\n{")
	if code := follower.Terminate(); code != term.ExitDone {
		t.Errorf("exit code %d", code)
	}
	if line, _, _ := strings.Cut(follower.Log.String(), "\n"); proctest.DecodeJSON(t, line)["health"] != "attention" {
		t.Errorf("%s", line)
	}
}

func TestResultLineStripsControlCharacters(t *testing.T) {
	t.Parallel()
	if got := status.OneLine("synced", "\x1b[2J\x1b]0;owned\a\u009b31mred\r\b\x7f"); strings.ContainsAny(got, "\x1b\a\r\b\x7f\u009b") {
		t.Errorf("%q", got)
	}
}
