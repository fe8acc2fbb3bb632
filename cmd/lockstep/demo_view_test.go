package main

import (
	"bytes"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// terminalDemo is a demonstration whose standard error is a terminal.
type terminalDemo struct {
	*process
	terminal *pty
	stdout   bytes.Buffer
	tmp      string
}

// demoOnATerminal starts a demonstration on a terminal of its own, as a shell would.
func demoOnATerminal(t *testing.T, environ []string, args ...string) *terminalDemo {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long, and is no different with another Redis")
	}
	d := &terminalDemo{terminal: openPTY(t), tmp: t.TempDir()}
	cmd := command(t, append([]string{"demo"}, args...)...)
	cmd.Env = append(append(os.Environ(), "TERM=xterm", "NO_COLOR=", "TMPDIR="+d.tmp), environ...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = d.terminal.file, &d.stdout, d.terminal.file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // so that Ctrl-C is a signal
	d.process = &process{t: t, cmd: cmd, log: d.terminal.seen, done: make(chan struct{})}
	must(0, cmd.Start())(t)
	go func() { _ = cmd.Wait(); close(d.done) }()
	t.Cleanup(d.kill)
	return d
}

// assertGivenBack checks that the cursor, and how lines are wrapped, are as they were.
func (d *terminalDemo) assertGivenBack() {
	d.t.Helper()
	drawn := d.log.String()
	if strings.LastIndex(drawn, showCursor) < strings.LastIndex(drawn, hideCursor) {
		d.t.Errorf("the terminal is not given back: …%q", tail(drawn, 200))
	}
}

func TestADemoDrawsOnATerminal(t *testing.T) {
	d := demoOnATerminal(t, nil, "--duration", "1s")
	d.awaitLog("repository")
	d.awaitLog(" killed with kill -9 while it held demo/hot")
	if code := d.ended(time.Minute); code != exitDone {
		t.Errorf("exit code %d, want 0:\n%s", code, d.log)
	}
	d.awaitLog(showCursor) // what a terminal was written it may pass on later
	d.assertGivenBack()
	if drawn := d.log.String(); strings.Count(drawn, "demo/sample-7") < 3 || !strings.Contains(drawn, "\x1b[14A") {
		t.Errorf("it does not draw again and again in the same place: %q", tail(drawn, 2000))
	}
	if table := d.stdout.String(); strings.Contains(table, "\x1b") || !strings.Contains(table, "as promised") {
		t.Errorf("standard output has escape sequences, or no table: %q", table)
	}
}

// Ctrl-C reaches every process of the terminal's foreground; the workers are not among them.
func TestADemoIsInterruptedFromTheKeyboard(t *testing.T) {
	d := demoOnATerminal(t, nil)
	d.awaitLog("all of them cloned")
	must(d.terminal.keyboard.Write([]byte{3}))(t)
	if code := d.ended(time.Minute); code != exitFailed {
		t.Errorf("exit code %d, want 1", code)
	}
	d.awaitLog("lockstep: interrupt signal received")
	d.assertGivenBack()
	assertNothingLeft(t, d.tmp, demoWorkers(t, d.log.String()))
}

// On the web Ctrl-C is how it is meant to end: Git, in the middle of a push, must not hear of it.
func TestADemoOnTheWebIsEndedFromTheKeyboard(t *testing.T) {
	d := demoOnATerminal(t, nil, "--web")
	d.awaitLog("all of them cloned")
	must(d.terminal.keyboard.Write([]byte{3}))(t)
	if code := d.ended(time.Minute); code != exitDone {
		t.Errorf("exit code %d, want 0:\n%s", code, tail(d.log.String(), 2000))
	}
	assertNothingLeft(t, d.tmp, demoWorkers(t, d.log.String()))
}

// Who is impatient leaves no more behind than who is not.
func TestADemoThatIsInterruptedTwiceLeavesNothingBehind(t *testing.T) {
	d := demoOnATerminal(t, nil)
	d.awaitLog("all of them cloned")
	must(d.terminal.keyboard.Write([]byte{3}))(t)
	d.awaitLog("^C")
	must(d.terminal.keyboard.Write([]byte{3}))(t)
	if code := d.ended(time.Minute); code != exitFailed {
		t.Errorf("exit code %d, want 1", code)
	}
	assertNothingLeft(t, d.tmp, demoWorkers(t, d.log.String()))
}

func TestADemoOnATerminalWithoutColours(t *testing.T) {
	d := demoOnATerminal(t, []string{"NO_COLOR=1"})
	d.awaitLog("trees read, 0 torn")
	must(d.terminal.keyboard.Write([]byte{3}))(t)
	d.ended(time.Minute)
	if drawn := strings.ReplaceAll(d.log.String(), "^C", ""); strings.Contains(drawn, "\x1b") {
		t.Errorf("escape sequences: %q", drawn)
	}
}
