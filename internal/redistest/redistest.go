// Package redistest gives each test a Redis of its own: a real redis-server on a free port when the
// machine has one, else the embedded one. LOCKSTEP_TEST_REDIS=real makes a missing redis-server a
// failure, as CI does; LOCKSTEP_TEST_REDIS=embedded leaves it aside.
package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"lockstep/internal/logtest"
	"lockstep/internal/redisx"
)

// startTime is how long a server may take to start, on a machine that is busy with others.
const startTime = time.Minute

// Server is a Redis that belongs to one test and ends with it.
type Server struct {
	Addr string // host:port
	Real bool   // redis-server, not the embedded one

	t    testing.TB
	dir  string
	args []string

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{} // closed once cmd is reaped
	log    *logtest.Buffer
	mem    *miniredis.Miniredis
}

// Start gives the test a Redis, real when there is one. Extra arguments go to redis-server alone,
// as in Start(t, "--appendonly", "yes", "--appendfsync", "always").
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	mode := os.Getenv("LOCKSTEP_TEST_REDIS")
	_, err := exec.LookPath("redis-server")
	switch {
	case mode == "real" && err != nil:
		t.Fatal("LOCKSTEP_TEST_REDIS=real, but there is no redis-server in PATH; install it (Debian: redis-server)")
	case mode == "embedded" || err != nil:
		return startEmbedded(t)
	}
	return startReal(t, args)
}

// StartReal is Start for a test that only a real redis-server can serve; it skips without one,
// unless LOCKSTEP_TEST_REDIS=real.
func StartReal(t testing.TB, args ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil && os.Getenv("LOCKSTEP_TEST_REDIS") != "real" ||
		os.Getenv("LOCKSTEP_TEST_REDIS") == "embedded" {
		t.Skip("needs a real redis-server")
	}
	return Start(t, args...)
}

func startEmbedded(t testing.TB) *Server {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	if err := m.Start(); err != nil {
		t.Fatalf("start the embedded Redis: %v", err)
	}
	s := &Server{Addr: m.Addr(), t: t, mem: m}
	t.Cleanup(s.Stop)
	return s
}

func startReal(t testing.TB, args []string) *Server {
	s := &Server{Real: true, t: t, dir: t.TempDir(), args: args}
	t.Cleanup(s.Stop)
	// Another process may take a port between our finding it free and redis-server's bind.
	for range 5 {
		s.Addr = freeAddr(t)
		if s.launch() == nil {
			return s
		}
	}
	t.Fatalf("redis-server does not start:\n%s", s.log)
	return nil
}

func freeAddr(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (s *Server) launch() error {
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return err
	}
	args := append([]string{"--bind", "127.0.0.1", "--port", port, "--dir", s.dir, "--save", "", "--daemonize", "no"}, s.args...)
	s.log = &logtest.Buffer{}
	cmd := exec.Command("redis-server", args...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	client := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	defer client.Close()
	deadline := time.After(startTime)
	for {
		// A pong alone could come from a stranger on the port: our own log must say that it listens.
		if strings.Contains(s.log.String(), "Ready to accept connections") && client.Ping(context.Background()).Err() == nil {
			s.cmd, s.exited = cmd, exited
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("redis-server exited:\n%s", s.log)
		case <-deadline:
			_ = cmd.Process.Kill()
			<-exited
			return fmt.Errorf("redis-server is not ready after %v:\n%s", startTime, s.log)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Stop ends the server as kill -9 would: connections break, nothing more is written.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem != nil {
		// Connections first: Close takes the server away from scripts that run, which then answer with an error.
		if server := s.mem.Server(); server != nil {
			s.mem.Lock() // or one that is about to block never hears of it
			s.mem.CtxCancel()
			s.mem.Unlock()
			server.Close()
		}
		s.mem.Close()
		return
	}
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		<-s.exited
		s.cmd = nil
	}
}

// Restart starts a stopped server again at the same address, with whatever it had persisted. The
// embedded one keeps its data over a stop.
func (s *Server) Restart() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	start := s.launch
	if s.mem != nil {
		// miniredis leaves its context cancelled, and blocking commands then never answer.
		s.mem.Ctx, s.mem.CtxCancel = context.WithCancel(context.Background())
		start = s.mem.Restart
	}
	// Meanwhile the port may have been given to a connection, of another process or of a client that dials it.
	for deadline := time.Now().Add(startTime); ; time.Sleep(10 * time.Millisecond) {
		switch err := start(); {
		case err == nil:
			return
		case time.Now().After(deadline):
			s.t.Fatalf("restart Redis on %s: %v", s.Addr, err)
		}
	}
}

// Pid is the process id of a real server.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		s.t.Fatal("Pid: not a running redis-server")
	}
	return s.cmd.Process.Pid
}

// URL is the server's address as the command line takes it.
func (s *Server) URL() string { return "redis://" + s.Addr }

// Client opens a client that is closed with the test.
func (s *Server) Client() redis.UniversalClient {
	s.t.Helper()
	server, err := redisx.Parse(s.URL(), "")
	if err != nil {
		s.t.Fatal(err)
	}
	client := server.Open()
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Port is the server's port.
func (s *Server) Port() int {
	_, port, _ := net.SplitHostPort(s.Addr)
	n, _ := strconv.Atoi(port)
	return n
}
