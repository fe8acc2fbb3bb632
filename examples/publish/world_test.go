package publish_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/gittest"
	"lockstep/internal/redistest"
)

// patience is the timeout for what takes a second on an idle machine.
const patience = 2 * time.Minute

// world is a Git server, a Redis and a worker. The Redis is a real one: the embedded one serves only its own process and is
// incompatible with the Node client.
type world struct {
	git    *gittest.Server
	redis  *redistest.Server
	client redis.UniversalClient
	root   string
	alive  context.Context // done, with the cause, once the worker has ended
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{redis: redistest.StartReal(t), root: t.TempDir()}
	must(t, buildGo())
	git, err := gittest.Start(filepath.Join(t.TempDir(), "remote"))
	must(t, err)
	t.Cleanup(git.Close)
	w.git, w.client = git, w.redis.Client()
	// Changes stay on the stream while a group has not settled them.
	must(t, w.client.XGroupCreateMkStream(t.Context(), events.DefaultNamespace.Changes(), "witness", "0").Err())

	w.startWorker(t)
	return w
}

func (w *world) startWorker(t *testing.T) {
	t.Helper()
	cmd := exec.Command(filepath.Join(built, "lockstep"), "serve", "--redis", w.redis.URL(), "--root", w.root)
	cmd.Dir = t.TempDir()
	var log bytes.Buffer // read once the process has ended
	cmd.Stdout, cmd.Stderr = &log, &log
	must(t, cmd.Start())
	alive, end := context.WithCancelCause(context.Background())
	w.alive = alive
	go func() {
		end(fmt.Errorf("lockstep serve has ended: %w", cmp.Or(cmd.Wait(), errors.New("exit status 0"))))
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-alive.Done()
		if t.Failed() {
			t.Logf("%v\n%s", context.Cause(alive), log.String())
		}
	})
}

// run runs a program that publishes, and returns what it printed and its exit code.
func (w *world) run(t *testing.T, command []string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(w.alive, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.WaitDelay = time.Second // child processes of the shell may outlive it
	cmd.Env = append(os.Environ(), "PATH="+built+string(filepath.ListSeparator)+os.Getenv("PATH"),
		"REDIS_URL="+w.redis.URL(), "LOCKSTEP_REDIS="+w.redis.URL())
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the exit code is checked instead
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// results waits for the first n results of a change.
func (w *world) results(t *testing.T, id string, n int) []events.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(w.alive, patience)
	defer cancel()
	var results []events.Result
	for from := "0-0"; len(results) < n; {
		read, err := w.client.XRead(ctx, &redis.XReadArgs{Streams: []string{events.DefaultNamespace.Results(), from}, Count: 100, Block: time.Second}).Result()
		if errors.Is(err, redis.Nil) && ctx.Err() == nil {
			continue
		}
		if ctx.Err() != nil {
			t.Fatalf("%d results that name %s, want %d: %v", len(results), id, n, context.Cause(ctx))
		}
		must(t, err)
		for _, entry := range read[0].Messages {
			from = entry.ID
			result, err := events.ParseResult([]byte(entry.Values["payload"].(string)))
			must(t, err)
			if slices.Contains(result.Deliveries, id) {
				results = append(results, result)
			}
		}
	}
	return results
}

// change returns the change with an ID from the stream, and whether it has plain fields.
func (w *world) change(t *testing.T, id string) (c events.Change, plain bool) {
	t.Helper()
	entries, err := w.client.XRange(t.Context(), events.DefaultNamespace.Changes(), "-", "+").Result()
	must(t, err)
	for _, entry := range entries {
		payload, wire := entry.Values["payload"].(string)
		document := []byte(payload)
		if !wire {
			document, err = json.Marshal(entry.Values)
			must(t, err)
		}
		c, err := events.ParseChange(document)
		must(t, err)
		if c.ID == id {
			return c, !wire
		}
	}
	t.Fatalf("no change %s among %d", id, len(entries))
	return c, plain
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
