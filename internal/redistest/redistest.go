// Package redistest starts a private Redis for each test: a redis-server on a free port if it is in PATH, else the
// embedded server. LOCKSTEP_TEST_REDIS=real fails the test without redis-server, as in CI; LOCKSTEP_TEST_REDIS=embedded
// always uses the embedded server.
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
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"lockstep/internal/logtest"
	"lockstep/internal/redisx"
)

const startTimeout = time.Minute // long enough for a busy machine

// Server is a Redis server that is stopped at the end of its test.
type Server struct {
	Addr string // host:port
	Real bool   // redis-server instead of the embedded server

	t    testing.TB
	dir  string
	args []string
	env  []string

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{} // closed once cmd is reaped
	log    *logtest.Buffer
	mem    *miniredis.Miniredis
	held   *os.File // a socket that keeps the port of a stopped server, nil while the server runs
}

// Start starts a Redis server for the test. Extra arguments are passed to redis-server and ignored by the embedded
// server, for example Start(t, "--appendonly", "yes", "--appendfsync", "always").
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

// StartReal is like Start, but skips the test without redis-server, unless LOCKSTEP_TEST_REDIS=real.
func StartReal(t testing.TB, args ...string) *Server {
	t.Helper()
	skipEmbedded(t)
	return Start(t, args...)
}

func skipEmbedded(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil && os.Getenv("LOCKSTEP_TEST_REDIS") != "real" ||
		os.Getenv("LOCKSTEP_TEST_REDIS") == "embedded" {
		t.Skip("needs a real redis-server")
	}
}

func startEmbedded(t testing.TB) *Server {
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		t.Fatalf("start the embedded Redis: %v", err)
	}
	s := &Server{Addr: m.Addr(), t: t, mem: m}
	t.Cleanup(redisx.Expire(m))
	t.Cleanup(s.end)
	return s
}

func startReal(t testing.TB, args []string, env ...string) *Server {
	s := &Server{Real: true, t: t, dir: t.TempDir(), args: args, env: env}
	t.Cleanup(s.end)
	// Another process may take the port before redis-server binds it.
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
	args := append([]string{"--bind", "127.0.0.1", "--port", port, "--dir", s.dir, "--save", "", "--daemonize", "no"},
		argsFor(s.args)...)
	s.log = &logtest.Buffer{}
	cmd := exec.Command("redis-server", args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = s.log, s.log, append(os.Environ(), s.env...)
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	client := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	defer client.Close()
	deadline := time.After(startTimeout)
	for {
		// Another process on the port could answer the ping, so also check this server's log.
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
			return fmt.Errorf("redis-server is not ready after %v:\n%s", startTimeout, s.log)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Stop kills the server as kill -9 does: connections break, and nothing more is written to disk. Until
// Restart or the end of the test its port refuses connections.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem != nil {
		// Close the connections first: otherwise running scripts lose the server and reply with an error.
		if server := s.mem.Server(); server != nil {
			s.mem.Lock() // otherwise a command that is about to block misses the cancellation
			s.mem.CtxCancel()
			s.mem.Unlock()
			server.Close()
		}
		s.mem.Close()
	}
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		<-s.exited
		s.cmd = nil
	}
	if s.held == nil {
		s.held = hold(s.Port())
	}
}

// hold binds a socket to a port of 127.0.0.1 and does not listen: connections to it are refused, and no
// server of another test can take the port. It returns nil if the port is taken already.
func hold(port int) *os.File {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil
	}
	socket := os.NewFile(uintptr(fd), "port "+strconv.Itoa(port))
	// Lingering connections of the stopped server do not matter.
	if syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1) != nil ||
		syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}) != nil {
		_ = socket.Close()
		return nil
	}
	return socket
}

// end stops the server and gives its port back.
func (s *Server) end() {
	s.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release()
}

func (s *Server) release() {
	if s.held != nil {
		_ = s.held.Close()
		s.held = nil
	}
}

// Restart starts a stopped server again at the same address, with its persisted data.
func (s *Server) Restart() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release()
	start := s.launch
	if s.mem != nil {
		// miniredis does not renew its cancelled context, and blocking commands would hang.
		s.mem.Ctx, s.mem.CtxCancel = context.WithCancel(context.Background())
		start = s.mem.Restart
	}
	// A connection, even one of a client that dials the server, may temporarily occupy the port.
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(10 * time.Millisecond) {
		switch err := start(); {
		case err == nil:
			return
		case time.Now().After(deadline):
			s.t.Fatalf("restart Redis on %s: %v", s.Addr, err)
		}
	}
}

// Pid returns the process ID of a running redis-server.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		s.t.Fatal("Pid: not a running redis-server")
	}
	return s.cmd.Process.Pid
}

// URL returns the server's URL for [redisx.Parse].
func (s *Server) URL() string { return "redis://" + s.Addr }

// Client returns a new client that is closed at the end of the test.
func (s *Server) Client() redis.UniversalClient {
	s.t.Helper()
	return Open(s.t, s.URL())
}

// Open returns a client of a server, Sentinels or a cluster, which is closed at the end of the test.
func Open(t testing.TB, url string) redis.UniversalClient {
	t.Helper()
	server, err := redisx.Parse(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := server.Open()
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Port returns the server's port.
func (s *Server) Port() int {
	_, port, _ := net.SplitHostPort(s.Addr)
	n, _ := strconv.Atoi(port)
	return n
}
