package hosts_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/hosts"
	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/testenv"
)

// wakerRedis is a variable with which the test binary is a process that is killed when it is to wake a repository.
const wakerRedis = "LOCKSTEP_HOSTS_WAKER"

// waker has the only permit of the host until it reads a byte. Then it reserves the permit for the first waiter, and kills itself
// instead of waking it.
func waker(url string) {
	server, err := redisx.Parse(url, "")
	if err != nil {
		panic(err)
	}
	budgets, err := hosts.New(hosts.Config{
		Redis: server.Open(), Prefix: "lockstep:{0}:", Process: "waker", Limit: 1, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Wake: func(context.Context, []hosts.Waiter) ([]bool, error) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		},
	})
	if err != nil {
		panic(err)
	}
	repo, err := events.ParseRepoPath("a/first")
	if err != nil {
		panic(err)
	}
	permit, err := budgets.Enter(context.Background(), hosts.Request{Host: host, Repo: repo, Kind: hosts.Push})
	if err != nil {
		panic(err)
	}
	go budgets.Run(context.Background())
	_, _ = os.Stdout.WriteString("1")
	_, _ = os.Stdin.Read(make([]byte, 1))
	permit.Done(context.Background(), success)
	select {}
}

// TestWaiterOfAKilledWakerIsWokenByAnother kills a process between the reservation of a permit and the call of Wake.
func TestWaiterOfAKilledWakerIsWokenByAnother(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	r := &rig{t: t, server: redistest.StartReal(t)}
	woken := make(chan string, 10)
	p := r.start(one, func(cfg *hosts.Config) {
		cfg.Wake = func(_ context.Context, waiters []hosts.Waiter) ([]bool, error) {
			for _, w := range waiters {
				woken <- w.Key
			}
			return nil, nil
		}
	})
	child := exec.Command(os.Args[0])
	child.Env, child.Stderr = append(os.Environ(), wakerRedis+"="+r.server.URL()), os.Stderr
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill() }()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	p.refused("a/second", hosts.Push, "", hosts.AtLimit)
	if _, err := in.Write([]byte("1")); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); child.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the waker ended with %v", err)
	}
	if h := r.state(); h.Waiting != 0 {
		t.Errorf("%+v; want a permit reserved for the waiter", h)
	}

	began := time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	defer running.Wait()
	defer cancel()
	select {
	case key := <-woken:
		t.Logf("woken after %v", time.Since(began).Round(100*time.Millisecond))
		if key != "a/second" {
			t.Errorf("woken %s", key)
		}
	case <-time.After(30 * time.Second): // the least time after which a change comes by itself
		t.Fatal("the waiter is not woken")
	}
	done(p.granted("a/second", hosts.Push, ""), success)
}

// TestUnusedReservationIsRepeatedOnce has waiters of both kinds that are woken and do not come: the reason need not be a killed process.
func TestUnusedReservationIsRepeatedOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := newRig(t, 2, one)
	killed, p := r.processes[0], r.processes[1]
	first := killed.granted("a/1", hosts.Push, "")
	p.refused("a/push", hosts.Push, "token", hosts.AtLimit)
	p.refused("a/poll", hosts.Poll, "", hosts.AtLimit)
	done(first, success) // reserves the permit for the push
	var got []string
	for range 5 {
		r.advance(5100 * time.Millisecond)
		hosts.Pump(ctx, p.Budgets)
		got = append(got, p.popped()...)
	}
	if want := []string{"a/push", "a/poll", "a/poll"}; !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("woken %q, want %q, each once more", got, want)
	}
	if h := r.state(); h.InUse != 0 || h.Waiting != 0 {
		t.Errorf("at the end %+v", h)
	}
	if next := p.granted("a/push", hosts.Push, "token"); next != nil {
		p.refused("a/other", hosts.Push, "", hosts.AtLimit)
		done(next, success)
		if got := p.popped(); !slices.Equal(got, []string{"a/other"}) {
			t.Errorf("woken %q afterwards", got)
		}
	}
}
