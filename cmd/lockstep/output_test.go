package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"lockstep/internal/redistest"
)

func TestHelpIsAsWideAsTheTerminal(t *testing.T) {
	help := func(w io.Writer) {
		run(t.Context(), []string{"serve", "--help"}, streams{stdout: w, stderr: io.Discard})
	}
	terminal := openPTY(t)
	help(terminal.file)
	_ = terminal.file.Close()
	<-terminal.done
	var piped bytes.Buffer
	help(&piped)
	seen := strings.ReplaceAll(terminal.seen.String(), "\r\n", "\n")
	_, flags, _ := strings.Cut(seen, "\nFlags:\n")
	if strings.Join(strings.Fields(seen), " ") != strings.Join(strings.Fields(piped.String()), " ") || !strings.Contains(flags, "--root") {
		t.Errorf("not the same help:\n%s", seen)
	}
	for line := range strings.Lines(flags) {
		if len([]rune(line)) > 101 { // 100, and its end
			t.Errorf("%q is wider than the terminal", line)
		}
	}
}

func TestStatusIsShownAgainAndAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long, and is no different with another Redis")
	}
	server := redistest.Start(t)
	terminal := openPTY(t)
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	ended := make(chan int, 1)
	args := []string{"status", "--watch", "--redis", server.URL()}
	go func() { ended <- run(ctx, args, streams{terminal.file, io.Discard, nil}) }()
	eventually(t, func() bool { return strings.Count(terminal.seen.String(), "\x1b[H") >= 2 }, "a second screen")
	if seen := terminal.seen.String(); !strings.Contains(seen, "no worker takes changes") || !strings.HasPrefix(seen, "\x1b[2J") {
		t.Errorf("%q", seen)
	}
	if server.Real { // away for a while: the screen says so, and comes back
		server.Stop()
		eventually(t, func() bool { return strings.Contains(terminal.seen.String(), "unavailable") }, "a screen without Redis")
		before := strings.Count(terminal.seen.String(), "no worker takes changes")
		server.Restart()
		eventually(t, func() bool { return strings.Count(terminal.seen.String(), "no worker takes changes") > before }, "a screen with Redis")
	}
	interrupt()
	if code := <-ended; code != exitDone {
		t.Errorf("exit code %d", code)
	}
	eventually(t, func() bool { return strings.HasSuffix(terminal.seen.String(), "\x1b[?7h") }, "lines that wrap again")

	follower := start(t, "status", "--watch", "-o", "json", "--redis", server.URL())
	follower.awaitLog("}\n{")
	if code := follower.terminate(); code != exitDone {
		t.Errorf("exit code %d", code)
	}
	if line, _, _ := strings.Cut(follower.log.String(), "\n"); decodeJSON(t, line)["health"] != "attention" {
		t.Errorf("%s", line)
	}
}

func TestNobodyElseCommandsTheTerminal(t *testing.T) {
	const hostile = "\x1b[2J\x1b]0;owned\a\u009b31mred\r\b\x7f"
	for _, colours := range []bool{false, true} {
		if got := align("worker\t"+hostile+"\n", colours); got != "worker  [2J]0;owned31mred\n" {
			t.Errorf("%q", got)
		}
	}
	if got := shown("synced", hostile); strings.ContainsAny(got, "\x1b\a\r\b\x7f\u009b") {
		t.Errorf("%q", got)
	}
}

func TestColoursAreForTerminalsAlone(t *testing.T) {
	root := t.TempDir()
	doctor := func(stdout io.Writer, environ ...string) {
		t.Helper()
		if code := run(context.Background(), []string{"doctor", "--root", root}, streams{stdout, io.Discard, environ}); code != exitDone {
			t.Fatalf("exit code %d", code)
		}
	}
	for _, tc := range []struct {
		environ  []string
		coloured bool
	}{{nil, true}, {[]string{"NO_COLOR=1"}, false}, {[]string{"NO_COLOR="}, true}, {[]string{"TERM=dumb"}, false}} {
		terminal := openPTY(t)
		doctor(terminal.file, tc.environ...)
		eventually(t, func() bool { return strings.Contains(terminal.seen.String(), "open files") }, "the doctor's last check")
		if got := strings.Contains(terminal.seen.String(), "\x1b[32mok\x1b[0m"); got != tc.coloured {
			t.Errorf("%q: coloured %v, want %v:\n%q", tc.environ, got, tc.coloured, terminal.seen.String())
		}
	}
	var b bytes.Buffer
	if doctor(&b); strings.Contains(b.String(), "\x1b") {
		t.Errorf("colours in a pipe: %q", b.String())
	}
}
