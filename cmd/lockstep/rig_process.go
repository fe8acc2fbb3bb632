package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	benchWarmUp = 250 * time.Millisecond // all contend, nothing counts
	roundGrace  = 30 * time.Second       // for processes to start and to end
)

// contestant is a program that speaks the worker protocol of bench/README.md.
type contestant struct {
	name string
	argv []string
}

func parsePeer(flag string) (contestant, error) {
	name, command, _ := strings.Cut(flag, "=")
	argv := strings.Fields(command)
	if name == "" || len(argv) == 0 {
		return contestant{}, fmt.Errorf("--peer is %q; want NAME=COMMAND …", flag)
	}
	return contestant{name, argv}, nil
}

// workerProcess is one process of a contestant.
type workerProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr bytes.Buffer // not to be read before the process has ended
	ended  bool
}

func startWorkerProcess(ctx context.Context, std streams, name string, args []string) (*workerProcess, error) {
	w := &workerProcess{cmd: exec.CommandContext(ctx, name, args...)}
	w.cmd.Env, w.cmd.Stderr = std.environ, &w.stderr
	w.cmd.WaitDelay = time.Second
	var err error
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.stdout = bufio.NewReader(stdout)
	return w, w.cmd.Start()
}

// ready waits for the worker's first line, and returns the version in it.
func (w *workerProcess) ready() (string, error) {
	line, err := w.stdout.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("a worker is not ready: %w", err)
	}
	version, ok := strings.CutPrefix(strings.TrimSpace(line), "ready")
	if !ok {
		return "", fmt.Errorf("a worker says %q; want ready", line)
	}
	return strings.TrimSpace(version), nil
}

func (w *workerProcess) kill() {
	if !w.ended {
		w.ended = true
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
	}
}

// explain ends the process and adds what it had to say, and why it was ended.
func (w *workerProcess) explain(ctx context.Context, err error) error {
	w.kill()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if said := strings.TrimSpace(w.stderr.String()); said != "" {
		return fmt.Errorf("%w: it says: %s", err, said)
	}
	return err
}

// monotonic is the clock that all processes of this machine share, in nanoseconds.
func monotonic() (int64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read the monotonic clock: %w", err)
	}
	return t.Nano(), nil
}
