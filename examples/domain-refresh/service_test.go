package main

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/locking"
)

// fleet is two processes whose refreshes block until released.
type fleet struct {
	addr    string
	begun   chan string
	proceed chan struct{}
	lost    chan struct{}

	mu        sync.Mutex
	busy, max int
}

func startFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{addr: redistest.Start(t).Addr, begun: make(chan string, 100), proceed: make(chan struct{}), lost: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	for range 2 {
		s := service{log: slog.New(slog.DiscardHandler), refresh: f.refresh, open: func() redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: f.addr, MaxRetries: -1})
		}}
		wg.Go(func() {
			if err := s.run(ctx, time.Hour, nil); err != nil {
				t.Error(err)
			}
		})
	}
	return f
}

func (f *fleet) refresh(ctx context.Context, domain string) (string, error) {
	f.mu.Lock()
	f.busy++
	f.max = max(f.max, f.busy)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.busy--
		f.mu.Unlock()
	}()
	f.begun <- domain
	select {
	case <-f.proceed:
		return "found", nil
	case <-ctx.Done():
		f.lost <- struct{}{}
		return "", context.Cause(ctx)
	}
}

func within[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("no %s after 20 s", what)
		panic("unreachable")
	}
}

func TestDomainIsNeverRefreshedConcurrently(t *testing.T) {
	testenv.Long(t)
	ctx, f := context.Background(), startFleet(t)
	client := redis.NewClient(&redis.Options{Addr: f.addr})
	defer client.Close()
	mustAsk := func(by string) {
		t.Helper()
		if err := ask(ctx, client, "example.com", by); err != nil {
			t.Fatal(err)
		}
	}
	mustAsk("hand")
	within(t, f.begun, "refresh")
	mustAsk("cron") // skipped: the domain is busy
	mustAsk("hand") // waits
	for client.XPending(ctx, wanted, "refreshers").Val().Count != 2 {
		time.Sleep(5 * time.Millisecond) // until the skipped one is settled, for which there is no signal
	}

	inspector := locking.NewInspector(client, locks)
	var out strings.Builder
	if err := status(ctx, &out, inspector); err != nil || !strings.Contains(out.String(), "example.com is being refreshed by job") {
		t.Errorf("status %q, %v", out.String(), err)
	}
	if err := release(ctx, &out, inspector, "example.com"); err != nil || !strings.Contains(out.String(), "released from") {
		t.Errorf("release %q, %v", out.String(), err)
	}
	within(t, f.lost, "cancellation of the holder")

	close(f.proceed)
	for range 2 { // the waiting request and the retry of the one that lost its lease
		within(t, f.begun, "refresh")
	}
	for client.XLen(ctx, done).Val() != 2 {
		time.Sleep(5 * time.Millisecond)
	}
	if f.mu.Lock(); f.max != 1 {
		t.Errorf("%d concurrent refreshes of one domain", f.max)
	}
	f.mu.Unlock()
}
