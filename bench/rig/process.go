package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lockstep/internal/config"
	"lockstep/internal/redisx"
)

// programVariable is the environment variable with the lockstep binary to measure instead of building one.
const programVariable = "BENCH_LOCKSTEP"

// Lockstep returns the path of the lockstep binary to measure. Unless BENCH_LOCKSTEP names one, it is built.
func (e *Env) Lockstep(ctx context.Context) (string, error) {
	if path := e.Variable(programVariable); path != "" {
		return filepath.Abs(path)
	}
	// Built in the product's module, with the versions that it ships with.
	root, err := exec.CommandContext(ctx, "go", "list", "-find", "-f", "{{.Root}}", "lockstep/cmd/lockstep").Output()
	if err != nil {
		return "", fmt.Errorf("find cmd/lockstep (run from the repository, or name a binary in %s): %w", programVariable, err)
	}
	path := filepath.Join(e.Dir, "lockstep")
	build := exec.CommandContext(ctx, "go", "build", "-C", strings.TrimSpace(string(root)), "-trimpath", "-o", path, "./cmd/lockstep")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build cmd/lockstep: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return path, nil
}

// Process is a background process whose output goes to a file.
type Process struct {
	Cmd     *exec.Cmd
	logPath string
	done    chan struct{} // closed when the process has ended
}

// StartBinary starts a lockstep binary, in a folder without a lockstep.yaml and without the variables that configure it.
func (e *Env) StartBinary(ctx context.Context, path string, args ...string) (*Process, error) {
	environ := slices.DeleteFunc(slices.Clone(e.Environ), func(pair string) bool { return strings.HasPrefix(pair, config.EnvPrefix) })
	return e.StartProcess(ctx, environ, path, args...)
}

// StartProcess starts a program, and kills it at the end of the run.
func (e *Env) StartProcess(ctx context.Context, environ []string, path string, args ...string) (*Process, error) {
	log, err := os.CreateTemp(e.Dir, "process-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &Process{Cmd: exec.CommandContext(ctx, path, args...), logPath: log.Name(), done: make(chan struct{})}
	p.Cmd.Dir, p.Cmd.Env = e.Dir, environ
	p.Cmd.Stdout, p.Cmd.Stderr = log, log
	if err := p.Cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(path), err)
	}
	go func() { _ = p.Cmd.Wait(); close(p.done) }()
	e.Cleanup(func() { _ = p.Kill() })
	return p, nil
}

// Listening waits until the process logs the address that it listens on, and returns it. On error it kills the process.
func (p *Process) Listening(ctx context.Context) (string, error) {
	for {
		log, err := os.ReadFile(p.logPath)
		if err != nil {
			return "", errors.Join(err, p.Kill())
		}
		if _, after, ok := bytes.Cut(log, []byte("msg=listening address=")); ok {
			if addr, _, whole := bytes.Cut(after, []byte("\n")); whole {
				return string(addr), nil
			}
		}
		select {
		case <-p.done:
			return "", p.failed("ended before it listened")
		case <-ctx.Done():
			return "", errors.Join(context.Cause(ctx), p.Kill())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Kill kills the process. It returns an error if the process had ended by itself.
func (p *Process) Kill() error {
	_ = p.Cmd.Process.Kill()
	<-p.done
	if p.Cmd.ProcessState.Exited() {
		return p.failed("ended by itself")
	}
	return nil
}

// Wait waits for the end of the process. It returns an error if the exit code is not 0.
func (p *Process) Wait() error {
	<-p.done
	if !p.Cmd.ProcessState.Success() {
		return p.failed("failed")
	}
	return nil
}

func (p *Process) failed(how string) error {
	return fmt.Errorf("%s %s: %s: %s", filepath.Base(p.Cmd.Path), how, p.Cmd.ProcessState, strings.TrimSpace(p.Log()))
}

// Log returns the end of the process's output.
func (p *Process) Log() string {
	log, _ := os.ReadFile(p.logPath)
	return string(log[max(0, len(log)-2000):])
}

// AwaitCount polls count until it is at least n.
func AwaitCount(ctx context.Context, n int64, count func() (int64, error)) error {
	for {
		got, err := count()
		if err != nil || got >= n {
			return err
		}
		if !redisx.Pause(ctx, 5*time.Millisecond) {
			return fmt.Errorf("counted %d of %d: %w", got, n, context.Cause(ctx))
		}
	}
}

// CountLog returns how many lines of the process's output contain the text.
func (p *Process) CountLog(text string) (int, error) {
	log, err := os.ReadFile(p.logPath)
	if err != nil {
		return 0, err
	}
	n := 0
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n, nil
}
