package rig

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/internal/app"
)

// Times around each measurement.
const (
	WarmUp     = 250 * time.Millisecond // start of a measurement, not counted
	RoundGrace = 30 * time.Second       // for processes to start and to end
)

// Contestant is a program that speaks one of the worker protocols of bench/README.md.
type Contestant struct {
	Name string
	Argv []string
}

// Contestants returns this program, which takes part with one of its hidden commands, and the peers of --peer.
func Contestants(command string, peers []string) ([]Contestant, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	contestants := []Contestant{{Name: "lockstep", Argv: []string{self, command}}}
	for _, flag := range peers {
		name, peer, _ := strings.Cut(flag, "=")
		argv := strings.Fields(peer)
		if name == "" || len(argv) == 0 {
			return nil, fmt.Errorf("--peer is %q; want NAME=COMMAND …", flag)
		}
		contestants = append(contestants, Contestant{name, argv})
	}
	return contestants, nil
}

// Names returns the names of contestants.
func Names(contestants []Contestant) []string {
	names := make([]string, len(contestants))
	for i, c := range contestants {
		names[i] = c.Name
	}
	return names
}

// Worker is one process of a contestant.
type Worker struct {
	Cmd    *exec.Cmd
	Stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr bytes.Buffer // complete once the process has ended
	ended  bool
}

// StartWorker starts a contestant with additional arguments.
func (e *Env) StartWorker(ctx context.Context, c Contestant, args ...string) (*Worker, error) {
	w := &Worker{Cmd: exec.CommandContext(ctx, c.Argv[0], slices.Concat(c.Argv[1:], args)...)}
	w.Cmd.Env, w.Cmd.Stderr = e.Environ, &w.stderr
	w.Cmd.WaitDelay = time.Second
	var err error
	if w.Stdin, err = w.Cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := w.Cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.stdout = bufio.NewReader(stdout)
	return w, w.Cmd.Start()
}

// Ready waits for the worker's first line, and returns the version in it.
func (w *Worker) Ready() (string, error) {
	line, err := w.stdout.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("worker is not ready: %w", err)
	}
	version, ok := strings.CutPrefix(strings.TrimSpace(line), "ready")
	if !ok {
		return "", fmt.Errorf("worker printed %q; want ready", line)
	}
	return strings.TrimSpace(version), nil
}

// eachLine calls f for each line that the worker prints, then waits for the worker to exit.
func (w *Worker) eachLine(f func(line string) error) error {
	lines := bufio.NewScanner(w.stdout)
	for lines.Scan() {
		if err := f(lines.Text()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return w.Wait()
}

// Wait waits until the process ends.
func (w *Worker) Wait() error {
	w.ended = true
	return w.Cmd.Wait()
}

// Kill kills the process, unless Wait has been called.
func (w *Worker) Kill() {
	if !w.ended {
		_ = w.Cmd.Process.Kill()
		_ = w.Wait()
	}
}

// Explain kills the process and adds its standard error to err. If ctx has ended, its cause replaces err.
func (w *Worker) Explain(ctx context.Context, err error) error {
	w.Kill()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if stderr := strings.TrimSpace(w.stderr.String()); stderr != "" {
		return fmt.Errorf("%w: stderr: %s", err, stderr)
	}
	return err
}

// Workers are the processes of a contestant.
type Workers []*Worker

// StartWorkers starts n processes and waits until all are ready. It returns the version that they print. The caller must
// kill the workers, also after an error.
func (e *Env) StartWorkers(ctx context.Context, n int, c Contestant, args ...string) (workers Workers, version string, err error) {
	for range n {
		w, err := e.StartWorker(ctx, c, args...)
		if err != nil {
			return workers, "", err
		}
		workers = append(workers, w)
	}
	for _, w := range workers {
		if version, err = w.Ready(); err != nil {
			return workers, "", w.Explain(ctx, err)
		}
	}
	return workers, version, nil
}

// Go starts the measurement in all workers. It returns the times just before the first start and just after the last.
func (ws Workers) Go(ctx context.Context) (told Span, err error) {
	told.From = Monotonic()
	for _, w := range ws {
		if _, err := io.WriteString(w.Stdin, "\n"); err != nil {
			return told, w.Explain(ctx, err)
		}
	}
	told.To = Monotonic()
	return told, nil
}

// EachLine calls f for each line that each worker prints, one at a time, then waits for all workers to exit.
func (ws Workers) EachLine(ctx context.Context, f func(worker int, line string) error) error {
	var g errgroup.Group
	var mu sync.Mutex
	for i, w := range ws {
		g.Go(func() error {
			err := w.eachLine(func(line string) error {
				mu.Lock()
				defer mu.Unlock()
				return f(i, line)
			})
			if err != nil {
				return w.Explain(ctx, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// Kill kills all workers.
func (ws Workers) Kill() {
	for _, w := range ws {
		w.Kill()
	}
}

// AwaitStart is a worker's side of the protocol: it prints that the worker is ready, and waits for a newline.
func AwaitStart(stdin *bufio.Reader, stdout io.Writer) error {
	if err := PrintReady(stdout); err != nil {
		return err
	}
	if _, err := stdin.ReadString('\n'); err != nil {
		return fmt.Errorf("wait for the start: %w", err)
	}
	return nil
}

// PrintReady prints that a worker is ready, and its version.
func PrintReady(stdout io.Writer) error {
	_, err := fmt.Fprintln(stdout, "ready", app.ReadBuild().Version)
	return err
}

// ParseNumbers reads the four numbers of a line of a worker protocol.
func ParseNumbers(line string) (n [4]int64, err error) {
	fields := strings.Fields(line)
	if len(fields) != len(n) {
		return n, fmt.Errorf("line %q has %d fields; want %d", line, len(fields), len(n))
	}
	for i, f := range fields {
		if n[i], err = strconv.ParseInt(f, 10, 64); err != nil {
			return n, fmt.Errorf("line %q: %w", line, err)
		}
	}
	return n, nil
}
