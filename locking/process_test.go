package locking_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/locking"
)

// The test binary runs itself as another process if childRole is set.
const (
	childRole  = "LOCKSTEP_LOCKING_CHILD"
	childRedis = "LOCKSTEP_LOCKING_REDIS"
	childLease = time.Second
)

// child acquires "k" and reports it. A "writer" writes under its fence until the storage refuses a write; a "holder"
// only holds the lease. child prints the outcome.
func child(role string) int {
	ctx := context.Background()
	server, err := redisx.Parse(os.Getenv(childRedis), nil)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	client := server.Open()
	locker, err := locking.New(locking.Config{Redis: client, PubSub: server.Open(), Prefix: prefix, Lease: childLease, Worker: "child"})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	l, err := locker.Acquire(ctx, locking.Request{Key: "k", Job: "child"})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("acquired", l.Fence())
	for role == "writer" && store(ctx, client, l.Fence()) {
		time.Sleep(time.Millisecond)
	}
	if role == "writer" {
		fmt.Println("refused", l.Fence())
	}
	<-l.Context().Done()
	fmt.Println("ended", context.Cause(l.Context()))
	return 0
}

// store is the storage behind the lock: it accepts writes only from the highest fence so far.
func store(ctx context.Context, client redis.Scripter, fence uint64) bool {
	const script = `
		local highest = tonumber(redis.call('GET', KEYS[1]) or '0')
		if tonumber(ARGV[1]) < highest then return 0 end
		redis.call('SET', KEYS[1], ARGV[1])
		return 1`
	accepted, err := client.Eval(ctx, script, []string{"{t}:storage"}, strconv.FormatUint(fence, 10)).Int()
	return err != nil || accepted == 1
}

type childProcess struct {
	*exec.Cmd
	lines *bufio.Scanner
}

func spawn(t *testing.T, server *redistest.Server, role string) childProcess {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childRole+"="+role, childRedis+"="+server.URL())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := childProcess{cmd, bufio.NewScanner(out)}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return c
}

// says returns the rest of the child's next line, which must start with word.
func (c childProcess) says(t *testing.T, word string) string {
	t.Helper()
	line := make(chan string, 1)
	go func() {
		c.lines.Scan()
		line <- c.lines.Text()
	}()
	text := soon(t, line, "a child that says "+word)
	rest, ok := strings.CutPrefix(text, word+" ")
	if !ok {
		t.Fatalf("the child said %q; want %s", text, word)
	}
	return rest
}

func TestKilledHolderIsReplaced(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := spawn(t, server, "holder")
	theirs := c.says(t, "acquired")
	p := start(t, server, "w1", lease(childLease))
	wait := queueUp(t, p, t.Context(), locking.Request{Key: "k", Job: "heir"})
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	l := soon(t, wait, "the heir").ok(t)
	if l.Fence() <= uint64(micros(t, theirs)) {
		t.Fatalf("fence %d follows %s", l.Fence(), theirs)
	}
	release(t, l)
}

func TestStoppedHolderResumesStale(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	c := spawn(t, server, "writer")
	theirs := c.says(t, "acquired")
	p := start(t, server, "w1", lease(childLease))
	wait := queueUp(t, p, t.Context(), locking.Request{Key: "k", Job: "heir"})
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	l := soon(t, wait, "the heir").ok(t)
	if !store(t.Context(), client, l.Fence()) {
		t.Fatal("the heir's write was refused")
	}
	if err := c.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if refused := c.says(t, "refused"); refused != theirs {
		t.Fatalf("fence %s was refused; want %s", refused, theirs)
	}
	if cause := c.says(t, "ended"); cause != locking.ErrLost.Error() {
		t.Fatalf("the stale holder's context ended with %q", cause)
	}
	wantErr(t, l.Confirm(t.Context()), nil)
	release(t, l)
}
