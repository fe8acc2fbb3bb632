package rig

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lockstep/internal/cli/term"
	"lockstep/internal/config"
)

// ServedProcess is a process that takes webhooks at an address. Its log is in a file.
type ServedProcess struct {
	Cmd  *exec.Cmd
	Addr string
	log  string
	done chan struct{} // closed when it has ended
}

// StartLockstep starts the lockstep binary with a log in dir, and returns once it listens.
func StartLockstep(ctx context.Context, std term.Streams, dir, name string, args ...string) (*ServedProcess, error) {
	program, err := Program(ctx, std, dir)
	if err != nil {
		return nil, err
	}
	return StartServed(ctx, std.Environ, program, dir, name, args...)
}

// StartServed starts a program with a log in dir, and returns once it listens.
func StartServed(ctx context.Context, environ []string, program, dir, name string, args ...string) (*ServedProcess, error) {
	p := &ServedProcess{log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.Cmd = exec.Command(program, args...)
	p.Cmd.Dir = dir // where no lockstep.yaml is
	p.Cmd.Env = slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		return strings.HasPrefix(pair, config.EnvPrefix)
	})
	p.Cmd.Stdout, p.Cmd.Stderr = log, log
	if err := p.Cmd.Start(); err != nil {
		return nil, fmt.Errorf("start lockstep %s: %w", name, err)
	}
	go func() { _ = p.Cmd.Wait(); close(p.done) }()
	for {
		said, err := os.ReadFile(p.log)
		if err != nil {
			p.Kill()
			return nil, err
		}
		if _, after, ok := bytes.Cut(said, []byte("msg=listening address=")); ok {
			if addr, _, whole := bytes.Cut(after, []byte("\n")); whole {
				p.Addr = string(addr)
				return p, nil
			}
		}
		select {
		case <-p.done:
			return nil, fmt.Errorf("lockstep %s ended: %s", name, said)
		case <-ctx.Done():
			p.Kill()
			return nil, context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Kill ends the process at once.
func (p *ServedProcess) Kill() {
	_ = p.Cmd.Process.Kill()
	<-p.done
}

// Said is the end of the process's log.
func (p *ServedProcess) Said() string {
	said, _ := os.ReadFile(p.log)
	if len(said) > 2000 {
		said = said[len(said)-2000:]
	}
	return string(said)
}
