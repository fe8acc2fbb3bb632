package gitserver

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

//go:embed dulwich.py
var dulwichScript string

// ErrNoDulwich means that no Python with the package dulwich was found (Debian: python3-dulwich).
var ErrNoDulwich = errors.New("no python3 with the package dulwich; install it (Debian: python3-dulwich)")

// Dulwich serves a [Server]'s repositories with another implementation of Git, to cover differences between servers.
// Tests that use it require it with LOCKSTEP_TEST_DULWICH=real; otherwise they are skipped if it is not installed.
type Dulwich struct {
	base   string
	stdin  io.Closer
	exited chan struct{}
}

// StartDulwich also serves the repositories over HTTP with Dulwich. The caller must close the returned
// server. It returns [ErrNoDulwich] if Dulwich is not installed.
func (s *Server) StartDulwich() (*Dulwich, error) {
	python, err := pythonWithDulwich()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(python, "-c", dulwichScript, s.dir)
	cmd.Env = isolatedEnv()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start dulwich: %w", err)
	}
	port, err := bufio.NewReader(stdout).ReadString('\n')
	d := &Dulwich{base: "http://127.0.0.1:" + strings.TrimSpace(port), stdin: stdin, exited: make(chan struct{})}
	go func() {
		defer close(d.exited)
		_ = cmd.Wait() // killed by Close
	}()
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("start dulwich: read its port: %w", err)
	}
	return d, nil
}

func pythonWithDulwich() (string, error) {
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		check := exec.Command(python, "-c", "import dulwich.web")
		check.Env = isolatedEnv()
		if check.Run() == nil {
			return python, nil
		}
	}
	return "", ErrNoDulwich
}

// URL returns the clone URL of repo.
func (d *Dulwich) URL(repo string) string { return d.base + "/" + repo + ".git" }

// Close stops the server.
func (d *Dulwich) Close() {
	_ = d.stdin.Close()
	<-d.exited
}
