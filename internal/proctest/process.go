package proctest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/logtest"
	"lockstep/internal/testenv"
)

// Process is a lockstep process under test.
type Process struct {
	T    *testing.T
	Cmd  *exec.Cmd
	Log  *logtest.Buffer
	Done chan struct{}
}

// Command returns a lockstep command with an empty working directory.
func Command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return program(t, "lockstep", args...)
}

func program(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = t.TempDir()
	return cmd
}

// Start runs lockstep in the background and kills it at the end of the test.
func Start(t *testing.T, args ...string) *Process {
	t.Helper()
	return StartCommand(t, Command(t, args...))
}

// StartCommand is like Start for a prepared command. Log stays empty if the command has outputs already.
func StartCommand(t *testing.T, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{T: t, Cmd: cmd, Log: &logtest.Buffer{}, Done: make(chan struct{})}
	if cmd.Stdout == nil && cmd.Stderr == nil {
		cmd.Stdout, cmd.Stderr = p.Log, p.Log
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.Cmd.Wait(); close(p.Done) }()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("lockstep %s:\n%s", strings.Join(cmd.Args[1:], " "), Tail(p.Log.String(), 4000))
		}
	})
	return p
}

// Tail returns the last n bytes of s.
func Tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// Kill sends SIGKILL and waits for the end of the process.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill()
	<-p.Done
}

// Terminate sends SIGTERM and returns the exit code.
func (p *Process) Terminate() int {
	p.T.Helper()
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	return p.AwaitExit(time.Minute)
}

// AwaitExit waits for the process to end by itself and returns its exit code.
func (p *Process) AwaitExit(within time.Duration) int {
	p.T.Helper()
	select {
	case <-p.Done:
	case <-time.After(within):
		p.T.Fatalf("the process is still running after %v", within)
	}
	return p.Cmd.ProcessState.ExitCode()
}

// AwaitLog returns once the log contains the text.
func (p *Process) AwaitLog(text string) {
	p.T.Helper()
	Eventually(p.T, func() bool { return strings.Contains(p.Log.String(), text) }, "log has %q", text)
}

// RunLockstep runs lockstep until it exits. It is killed after three minutes; its exit code is then -1.
func RunLockstep(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return Run(t, "lockstep", env, args...)
}

// Run is like RunLockstep for another program in PATH.
func Run(t *testing.T, name string, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := program(t, name, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(3*time.Minute, func() { _ = cmd.Process.Kill() }).Stop()
	_ = cmd.Wait() // the caller checks the exit code
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// patience is how long tests wait for something that is immediate on an idle machine. A change that waits for a
// host comes back after up to 90 s.
const patience = 3 * time.Minute

// Eventually polls until ok returns true, for effects of other processes without a signal to wait for. It
// fails the test after three minutes.
func Eventually(t *testing.T, ok func() bool, format string, args ...any) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("timed out waiting for: "+format, args...)
}

// WithLongerTimeouts calls run with increasing timeouts until it succeeds, because slow machines need more time.
func WithLongerTimeouts(t *testing.T, first time.Duration, run func(d time.Duration) error) {
	t.Helper()
	var err error
	for d := first; d < 30*time.Second; d *= 5 {
		if err = run(d); err == nil {
			return
		}
	}
	t.Error(err)
}

// StartGit starts a Git server that is stopped at the end of the test.
func StartGit(t *testing.T, opts ...gitserver.Option) *gitserver.Server {
	t.Helper()
	git, err := gitserver.Start(filepath.Join(t.TempDir(), "remote"), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(git.Close)
	return git
}

// Must returns a function that returns value, or fails the test if err is not nil: Must(f())(t).
func Must[T any](value T, err error) func(testing.TB) T { return testenv.Must(value, err) }

// AwaitResults waits until the result stream has n results, and returns all it has read.
func AwaitResults(t *testing.T, client redis.UniversalClient, n int) []events.Result {
	t.Helper()
	topic := events.DefaultNamespace.Results()
	var results []events.Result
	from := "0"
	for progress := time.Now(); len(results) < n; {
		if time.Since(progress) > patience {
			t.Fatalf("no new result for %v: got %d, want %d", patience, len(results), n)
		}
		read, err := client.XRead(context.Background(), &redis.XReadArgs{
			Streams: []string{topic, from}, Count: 1000, Block: time.Second,
		}).Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range read[0].Messages {
			from, progress = entry.ID, time.Now()
			results = append(results, DecodeResult(t, entry))
		}
	}
	return results
}

// DecodeResult parses an entry of the result stream.
func DecodeResult(t *testing.T, entry redis.XMessage) events.Result {
	t.Helper()
	msg, err := redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(entry.Values)
	if err != nil {
		t.Fatal(err)
	}
	result, err := events.ParseResult(msg.Payload)
	if err != nil {
		t.Fatalf("%v: %s", err, msg.Payload)
	}
	return result
}

// AssertIdle checks that no change is pending and that there are no dead letters.
func AssertIdle(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	ctx := context.Background()
	pending := Must(client.XPending(ctx, events.DefaultNamespace.Changes(), events.WorkersGroup).Result())(t)
	if pending.Count != 0 {
		t.Errorf("%d changes pending, want none", pending.Count)
	}
	if n := Must(client.XLen(ctx, events.DefaultNamespace.Dead()).Result())(t); n != 0 {
		t.Errorf("%d dead letters, want none", n)
	}
}

// DecodeJSON parses a JSON object.
func DecodeJSON(t *testing.T, text string) map[string]any {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return doc
}

// ListenAddress waits for the log message and returns its address attribute. A message of several words needs quotes.
func (p *Process) ListenAddress(message string) string {
	p.T.Helper()
	line := `msg=` + message + ` address=`
	p.AwaitLog(line)
	_, after, _ := strings.Cut(p.Log.String(), line)
	address, _, _ := strings.Cut(after, "\n")
	return address
}

// FreeAddress reserves a local address until the end of the test. It binds a socket that does not listen, so
// the kernel gives the port to nobody else, but SO_REUSEADDR, which Go sets on all sockets, still allows to
// listen on it explicitly.
func FreeAddress(t *testing.T) string {
	t.Helper()
	fd := Must(syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	Must(0, syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1))(t)
	// on all addresses, so that port 0 of another one is not it either
	Must(0, syscall.Bind(fd, &syscall.SockaddrInet4{}))(t)
	name, ok := Must(syscall.Getsockname(fd))(t).(*syscall.SockaddrInet4)
	if !ok {
		t.Fatal("the socket has no address")
	}
	return fmt.Sprintf("127.0.0.1:%d", name.Port)
}
