package cli

import (
	"bytes"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/demo"
	"lockstep/internal/proctest"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// terminalDemo is a running demo whose standard error is a terminal.
type terminalDemo struct {
	*proctest.Process
	terminal *pty
	stdout   bytes.Buffer
	tmp      string
}

// demoOnATerminal starts a demo in a new session with a terminal, as a shell does.
func demoOnATerminal(t *testing.T, environ []string, args ...string) *terminalDemo {
	t.Helper()
	d := &terminalDemo{terminal: openPTY(t), tmp: t.TempDir()}
	cmd := proctest.Command(t, append([]string{"demo"}, args...)...)
	cmd.Env = append(append(os.Environ(), "TERM=xterm", "NO_COLOR=", "TMPDIR="+d.tmp), environ...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = d.terminal.File, &d.stdout, d.terminal.File
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // so that Ctrl-C is a signal
	d.Process = proctest.StartCommand(t, cmd)
	d.Log = d.terminal.Output
	return d
}

// assertRestored checks that the demo has restored cursor and line wrapping.
func (d *terminalDemo) assertRestored() {
	d.T.Helper()
	drawn := d.Log.String()
	if strings.LastIndex(drawn, demo.ShowCursor) < strings.LastIndex(drawn, demo.HideCursor) {
		d.T.Errorf("the terminal is not restored: …%q", proctest.Tail(drawn, 200))
	}
}

func TestDemoDrawsOnTerminal(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	d := demoOnATerminal(t, nil, "--duration", "1s")
	d.AwaitLog("repository")
	d.AwaitLog(" killed with kill -9 while it held demo/hot")
	if code := d.AwaitExit(3 * time.Minute); code != term.ExitDone {
		t.Errorf("exit code %d, want 0:\n%s", code, d.Log)
	}
	d.AwaitLog(demo.ShowCursor) // output may arrive after the exit
	d.assertRestored()
	if drawn := d.Log.String(); strings.Count(drawn, "demo/sample-7") < 3 || !strings.Contains(drawn, "\x1b[14A") {
		t.Errorf("the demo does not redraw in place: %q", proctest.Tail(drawn, 2000))
	}
	if table := d.stdout.String(); strings.Contains(table, "\x1b") || !strings.Contains(table, "as promised") {
		t.Errorf("escape sequences or no table on standard output: %q", table)
	}
}

// Ctrl-C signals the foreground processes of the terminal, which must not include the workers.
func TestDemoInterruptedFromKeyboard(t *testing.T) {
	testenv.Long(t)
	d := demoOnATerminal(t, nil)
	d.AwaitLog("all of them cloned")
	proctest.Must(d.terminal.Keyboard.Write([]byte{3}))(t)
	if code := d.AwaitExit(time.Minute); code != term.ExitFailed {
		t.Errorf("exit code %d, want 1", code)
	}
	d.AwaitLog("lockstep: interrupt signal received")
	d.assertRestored()
	assertNothingLeft(t, d.tmp, demoWorkers(t, d.Log.String()))
}

// Ctrl-C is the regular end of a web demo. It must not reach a running git process.
func TestWebDemoEndedFromKeyboard(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	d := demoOnATerminal(t, nil, "--web")
	d.AwaitLog("all of them cloned")
	proctest.Must(d.terminal.Keyboard.Write([]byte{3}))(t)
	if code := d.AwaitExit(time.Minute); code != term.ExitDone {
		t.Errorf("exit code %d, want 0:\n%s", code, proctest.Tail(d.Log.String(), 2000))
	}
	assertNothingLeft(t, d.tmp, demoWorkers(t, d.Log.String()))
}

func TestDemoInterruptedTwiceLeavesNothingBehind(t *testing.T) {
	testenv.Long(t)
	d := demoOnATerminal(t, nil)
	d.AwaitLog("all of them cloned")
	proctest.Must(d.terminal.Keyboard.Write([]byte{3}))(t)
	d.AwaitLog("^C")
	proctest.Must(d.terminal.Keyboard.Write([]byte{3}))(t)
	if code := d.AwaitExit(time.Minute); code != term.ExitFailed {
		t.Errorf("exit code %d, want 1", code)
	}
	assertNothingLeft(t, d.tmp, demoWorkers(t, d.Log.String()))
}

func TestDemoWithoutColours(t *testing.T) {
	testenv.Long(t)
	d := demoOnATerminal(t, []string{"NO_COLOR=1"})
	d.AwaitLog("trees read, 0 torn")
	proctest.Must(d.terminal.Keyboard.Write([]byte{3}))(t)
	d.AwaitExit(time.Minute)
	if drawn := strings.ReplaceAll(d.Log.String(), "^C", ""); strings.Contains(drawn, "\x1b") {
		t.Errorf("escape sequences: %q", drawn)
	}
}
