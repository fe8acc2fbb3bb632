package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"

	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/logtest"
)

// TestMain lets this test binary be the lockstep command, and a worker that dies: testscript puts it
// into PATH by those names.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"lockstep": main, "lockstep-dying": dyingMain})
}

// process is a lockstep process under test.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  *logtest.Buffer
	done chan struct{}
}

// command makes a lockstep command with an environment of its own.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("lockstep")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = t.TempDir()
	return cmd
}

// start runs lockstep in the background; it is killed with the test at the latest.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startCommand(t, command(t, args...))
}

// startCommand is start for a command with an environment of its own.
func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, log: &logtest.Buffer{}, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("lockstep %s:\n%s", strings.Join(cmd.Args[1:], " "), tail(p.log.String(), 4000))
		}
	})
	return p
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// terminate sends SIGTERM and returns the exit code.
func (p *process) terminate() int {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	return p.ended(time.Minute)
}

// ended waits for the process to end by itself, and returns its exit code.
func (p *process) ended(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(within):
		p.t.Fatalf("the process goes on after %v", within)
	}
	return p.cmd.ProcessState.ExitCode()
}

// awaitLog returns once the process has logged the text.
func (p *process) awaitLog(text string) {
	p.t.Helper()
	eventually(p.t, func() bool { return strings.Contains(p.log.String(), text) }, "log has %q", text)
}

// runLockstep runs lockstep to its end; one that does not come to it is killed, and its code is -1.
func runLockstep(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := command(t, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(3*time.Minute, func() { _ = cmd.Process.Kill() }).Stop()
	_ = cmd.Wait() // the exit code says it all
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// eventually polls for what another process brings about and no signal tells of.
func eventually(t *testing.T, ok func() bool, format string, args ...any) {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: "+format, args...)
}

// inTime runs something with more and more time, until that is enough: how much it takes is the machine's affair.
func inTime(t *testing.T, first time.Duration, run func(d time.Duration) error) {
	t.Helper()
	var err error
	for d := first; d < 30*time.Second; d *= 5 {
		if err = run(d); err == nil {
			return
		}
	}
	t.Error(err)
}

func startGit(t *testing.T, opts ...gitserver.Option) *gitserver.Server {
	t.Helper()
	git, err := gitserver.Start(filepath.Join(t.TempDir(), "remote"), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(git.Close)
	return git
}

func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// gitIn runs git in a folder, as a user would.
func gitIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s in %s: %v\n%s", strings.Join(args, " "), dir, err, out)
	}
	return strings.TrimSpace(string(out))
}

// awaitResults returns the first n results, or more if there are more by then.
func awaitResults(t *testing.T, client redis.UniversalClient, n int) []events.Result {
	t.Helper()
	topic := events.DefaultNamespace.Results()
	var results []events.Result
	from := "0"
	for progress := time.Now(); len(results) < n; {
		if time.Since(progress) > time.Minute {
			t.Fatalf("%d results and no more for a minute, want %d", len(results), n)
		}
		read, err := client.XRead(context.Background(), &redis.XReadArgs{Streams: []string{topic, from}, Count: 1000, Block: time.Second}).Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range read[0].Messages {
			from, progress = entry.ID, time.Now()
			results = append(results, decodeResult(t, entry))
		}
	}
	return results
}

// resultsSoFar are the results that there are.
func resultsSoFar(t *testing.T, client redis.UniversalClient) []events.Result {
	t.Helper()
	var results []events.Result
	for _, entry := range must(client.XRange(context.Background(), events.DefaultNamespace.Results(), "-", "+").Result())(t) {
		results = append(results, decodeResult(t, entry))
	}
	return results
}

func decodeResult(t *testing.T, entry redis.XMessage) events.Result {
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

// assertIdle checks that nothing is pending, parked or dead.
func assertIdle(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	ctx := context.Background()
	pending := must(client.XPending(ctx, events.DefaultNamespace.Changes(), workers).Result())(t)
	if pending.Count != 0 {
		t.Errorf("%d changes pending, want none", pending.Count)
	}
	if n := must(client.XLen(ctx, events.DefaultNamespace.Dead()).Result())(t); n != 0 {
		t.Errorf("%d dead letters, want none", n)
	}
}

func decodeJSON(t *testing.T, text string) map[string]any {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return doc
}
