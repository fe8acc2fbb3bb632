package cli

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/status"
	"lockstep/internal/term"
)

func TestHelpFitsTerminalWidth(t *testing.T) {
	t.Parallel()
	help := func(w io.Writer) {
		Run(t.Context(), []string{"serve", "--help"}, term.Streams{Stdout: w, Stderr: io.Discard})
	}
	terminal := openPTY(t)
	help(terminal.File)
	_ = terminal.File.Close()
	<-terminal.Done
	var piped bytes.Buffer
	help(&piped)
	shown := strings.ReplaceAll(terminal.Output.String(), "\r\n", "\n")
	_, flags, _ := strings.Cut(shown, "\nFlags:\n")
	if strings.Join(strings.Fields(shown), " ") != strings.Join(strings.Fields(piped.String()), " ") || !strings.Contains(flags, "--root") {
		t.Errorf("help on a terminal differs from piped help:\n%s", shown)
	}
	for line := range strings.Lines(flags) {
		if len([]rune(line)) > 101 { // 100 and the newline
			t.Errorf("%q is wider than the terminal", line)
		}
	}
}

func TestHelpElsewhereFits100Columns(t *testing.T) {
	t.Parallel()
	check := func(args ...string) {
		var help bytes.Buffer
		Run(t.Context(), args, term.Streams{Stdout: &help, Stderr: io.Discard})
		if help.Len() == 0 {
			t.Errorf("%q prints nothing", args)
		}
		for line := range strings.Lines(help.String()) {
			if len([]rune(line)) > 101 && !strings.HasPrefix(line, "  lockstep ") { // examples stay whole, to be pasted
				t.Errorf("%q: %q is wider", args, line)
			}
		}
	}
	check("help", "environment")
	check("help", "exit-codes")
	everyCommand(func(path string, _ *cobra.Command) { check(append(strings.Fields(path)[1:], "--help")...) })
}

func TestStatusWatchRedraws(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	terminal := openPTY(t)
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	ended := make(chan int, 1)
	args := []string{"status", "--watch", "--redis", server.URL()}
	go func() { ended <- Run(ctx, args, term.Streams{Stdout: terminal.File, Stderr: io.Discard}) }()
	proctest.Eventually(t, func() bool { return strings.Count(terminal.Output.String(), "\x1b[H") >= 2 }, "a second screen")
	if shown := terminal.Output.String(); !strings.Contains(shown, "no worker takes changes") || !strings.HasPrefix(shown, "\x1b[2J") {
		t.Errorf("%q", shown)
	}
	if server.Real { // survives an outage of Redis
		server.Stop()
		proctest.Eventually(t, func() bool { return strings.Contains(terminal.Output.String(), "unavailable") }, "a screen without Redis")
		before := strings.Count(terminal.Output.String(), "no worker takes changes")
		server.Restart()
		proctest.Eventually(t, func() bool { return strings.Count(terminal.Output.String(), "no worker takes changes") > before }, "a screen with Redis")
	}
	interrupt()
	if code := <-ended; code != term.ExitDone {
		t.Errorf("exit code %d", code)
	}
	proctest.Eventually(t, func() bool { return strings.HasSuffix(terminal.Output.String(), "\x1b[?7h") }, "line wrapping is restored")

	follower := proctest.Start(t, "status", "--watch", "-o", "json", "--redis", server.URL())
	follower.AwaitLog("}\n{")
	if code := follower.Terminate(); code != term.ExitDone {
		t.Errorf("exit code %d", code)
	}
	if line, _, _ := strings.Cut(follower.Log.String(), "\n"); proctest.DecodeJSON(t, line)["health"] != "attention" {
		t.Errorf("%s", line)
	}
}

func TestOutputStripsControlCharacters(t *testing.T) {
	t.Parallel()
	const hostile = "\x1b[2J\x1b]0;owned\a\u009b31mred\r\b\x7f"
	for _, colours := range []bool{false, true} {
		if got := term.Align("worker\t"+hostile+"\n", colours); got != "worker  [2J]0;owned31mred\n" {
			t.Errorf("%q", got)
		}
	}
	if got := status.OneLine("synced", hostile); strings.ContainsAny(got, "\x1b\a\r\b\x7f\u009b") {
		t.Errorf("%q", got)
	}
}

func TestColoursOnlyOnTerminals(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	doctor := func(stdout io.Writer, environ ...string) {
		t.Helper()
		if code := Run(context.Background(), []string{"doctor", "--root", root}, term.Streams{Stdout: stdout, Stderr: io.Discard, Environ: environ}); code != term.ExitDone {
			t.Fatalf("exit code %d", code)
		}
	}
	for _, tc := range []struct {
		environ  []string
		coloured bool
	}{{nil, true}, {[]string{"NO_COLOR=1"}, false}, {[]string{"NO_COLOR="}, true}, {[]string{"TERM=dumb"}, false}} {
		terminal := openPTY(t)
		doctor(terminal.File, tc.environ...)
		proctest.Eventually(t, func() bool { return strings.Contains(terminal.Output.String(), "open files") }, "the doctor's last check")
		if got := strings.Contains(terminal.Output.String(), "\x1b[32mok\x1b[0m"); got != tc.coloured {
			t.Errorf("%q: coloured %v, want %v:\n%q", tc.environ, got, tc.coloured, terminal.Output.String())
		}
	}
	var b bytes.Buffer
	if doctor(&b); strings.Contains(b.String(), "\x1b") {
		t.Errorf("colours in a pipe: %q", b.String())
	}
}
