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
	"lockstep/internal/gitserver"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
)

// patience is the timeout for actions that take a second on an idle machine.
const patience = 2 * time.Minute

// world has a Git server, a Redis and a worker. It uses a real Redis, because the embedded one only serves its own process
// and answers Node differently.
type world struct {
	git    *gitserver.Server
	redis  *redistest.Server
	client redis.UniversalClient
	root   string
	alive  context.Context // done when the worker has ended, with the cause
}

func newWorld(t *testing.T) *world {
	t.Helper()
	testenv.Long(t)
	w := &world{redis: redistest.StartReal(t), root: t.TempDir()}
	must(t, buildGo())
	git, err := gitserver.Start(filepath.Join(t.TempDir(), "remote"))
	must(t, err)
	t.Cleanup(git.Close)
	w.git, w.client = git, w.redis.Client()
	// A group that settles nothing keeps all changes in the stream.
	must(t, w.client.XGroupCreateMkStream(t.Context(), events.DefaultNamespace.Changes(), "witness", "0").Err())

	w.startWorker(t)
	return w
}

func (w *world) startWorker(t *testing.T) {
	t.Helper()
	cmd := exec.Command(filepath.Join(built, "lockstep"), "serve", "--redis", w.redis.URL(), "--root", w.root)
	cmd.Dir = t.TempDir()
	var log bytes.Buffer // only read after the process has ended
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

// run runs a program and returns its output and exit code.
func (w *world) run(t *testing.T, command []string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(w.alive, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.WaitDelay = time.Second // children of a shell may outlive it
	cmd.Env = append(os.Environ(), "PATH="+built+string(filepath.ListSeparator)+os.Getenv("PATH"),
		"REDIS_URL="+w.redis.URL(), "LOCKSTEP_REDIS="+w.redis.URL())
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the caller checks the exit code
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// results returns the first n results of a change.
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
			t.Fatalf("%d results of %s, want %d: %v", len(results), id, n, context.Cause(ctx))
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

// change returns a change in the stream by ID, and whether it consists of plain fields.
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
