package main

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

	"lockstep/internal/config"
)

// servedProcess is a process that takes webhooks at an address. Its log is in a file.
type servedProcess struct {
	cmd  *exec.Cmd
	addr string
	log  string
	done chan struct{} // closed when it has ended
}

// startLockstep starts the lockstep binary with a log in dir, and returns once it listens.
func startLockstep(ctx context.Context, std streams, dir, name string, args ...string) (*servedProcess, error) {
	program, err := lockstepProgram(ctx, std, dir)
	if err != nil {
		return nil, err
	}
	return startServed(ctx, std.environ, program, dir, name, args...)
}

// startServed starts a program with a log in dir, and returns once it listens.
func startServed(ctx context.Context, environ []string, program, dir, name string, args ...string) (*servedProcess, error) {
	p := &servedProcess{log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Dir = dir // where no lockstep.yaml is
	p.cmd.Env = slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		return strings.HasPrefix(pair, config.EnvPrefix)
	})
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start lockstep %s: %w", name, err)
	}
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	for {
		said, err := os.ReadFile(p.log)
		if err != nil {
			p.kill()
			return nil, err
		}
		if _, after, ok := bytes.Cut(said, []byte("msg=listening address=")); ok {
			if addr, _, whole := bytes.Cut(after, []byte("\n")); whole {
				p.addr = string(addr)
				return p, nil
			}
		}
		select {
		case <-p.done:
			return nil, fmt.Errorf("lockstep %s ended: %s", name, said)
		case <-ctx.Done():
			p.kill()
			return nil, context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// kill ends the process at once.
func (p *servedProcess) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// said is the end of the process's log.
func (p *servedProcess) said() string {
	said, _ := os.ReadFile(p.log)
	if len(said) > 2000 {
		said = said[len(said)-2000:]
	}
	return string(said)
}
