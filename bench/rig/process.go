package rig

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

	"lockstep/internal/cli/term"
)

const (
	WarmUp     = 250 * time.Millisecond // all contend, nothing counts
	RoundGrace = 30 * time.Second       // for processes to start and to end
)

// Contestant is a program that speaks the worker protocol of bench/README.md.
type Contestant struct {
	Name string
	Argv []string
}

func ParsePeer(flag string) (Contestant, error) {
	name, command, _ := strings.Cut(flag, "=")
	argv := strings.Fields(command)
	if name == "" || len(argv) == 0 {
		return Contestant{}, fmt.Errorf("--peer is %q; want NAME=COMMAND …", flag)
	}
	return Contestant{name, argv}, nil
}

// Worker is one process of a contestant.
type Worker struct {
	Cmd    *exec.Cmd
	Stdin  io.WriteCloser
	Stdout *bufio.Reader
	stderr bytes.Buffer // not to be read before the process has ended
	Ended  bool
}

func StartWorker(ctx context.Context, std term.Streams, name string, args []string) (*Worker, error) {
	w := &Worker{Cmd: exec.CommandContext(ctx, name, args...)}
	w.Cmd.Env, w.Cmd.Stderr = std.Environ, &w.stderr
	w.Cmd.WaitDelay = time.Second
	var err error
	if w.Stdin, err = w.Cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := w.Cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.Stdout = bufio.NewReader(stdout)
	return w, w.Cmd.Start()
}

// Ready waits for the worker's first line, and returns the version in it.
func (w *Worker) Ready() (string, error) {
	line, err := w.Stdout.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("a worker is not ready: %w", err)
	}
	version, ok := strings.CutPrefix(strings.TrimSpace(line), "ready")
	if !ok {
		return "", fmt.Errorf("a worker says %q; want ready", line)
	}
	return strings.TrimSpace(version), nil
}

func (w *Worker) Kill() {
	if !w.Ended {
		w.Ended = true
		_ = w.Cmd.Process.Kill()
		_ = w.Cmd.Wait()
	}
}

// Explain ends the process and adds what it had to say, and why it was ended.
func (w *Worker) Explain(ctx context.Context, err error) error {
	w.Kill()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if said := strings.TrimSpace(w.stderr.String()); said != "" {
		return fmt.Errorf("%w: it says: %s", err, said)
	}
	return err
}

// Monotonic is the clock that all processes of this machine share, in nanoseconds.
func Monotonic() (int64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read the monotonic clock: %w", err)
	}
	return t.Nano(), nil
}
