package locking_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/redistest"
	"lockstep/locking"
)

func TestLeaseFieldsInRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := start(t, server, "w1")
	l, err := p.Acquire(t.Context(), locking.Request{Key: "acme/widgets", Job: "42", Operation: "sync"})
	if err != nil {
		t.Fatal(err)
	}
	guard := l.Guard()
	fields := server.Client().HGetAll(t.Context(), guard.Key).Val()
	want := map[string]string{
		"owner": guard.Owner, "fence": fence(l), "worker": "w1", "job": "42", "operation": "sync",
		"since": fields["since"], "expires": fields["expires"], "channel": fields["channel"],
	}
	if !maps.Equal(fields, want) || guard.Key != prefix+"acme/widgets" || l.Key() != "acme/widgets" {
		t.Fatalf("the hash at %s is %v; want %v", guard.Key, fields, want)
	}
	if lasts := micros(t, fields["expires"]) - micros(t, fields["since"]); lasts != 2_000_000 {
		t.Fatalf("the lease lasts %d µs; want 2 s", lasts)
	}

	release(t, l)
	release(t, l)
	if l.Context().Err() == nil || context.Cause(l.Context()) != context.Canceled {
		t.Fatalf("after the release the lease's context ended with %v", context.Cause(l.Context()))
	}
	wantErr(t, l.Confirm(t.Context()), locking.ErrLost)
	fields = server.Client().HGetAll(t.Context(), guard.Key).Val()
	if fields["owner"] != "" || fields["fence"] != fence(l) {
		t.Fatalf("after the release the hash is %v; want no owner and fence %s", fields, fence(l))
	}
	if ttl := server.Client().TTL(t.Context(), guard.Key).Val(); ttl < 23*time.Hour || ttl > 24*time.Hour {
		t.Fatalf("an idle key expires after %v; want a day", ttl)
	}
}

func TestTimeoutNamesTheHolder(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	observed := &tally{}
	holder := start(t, server, "w1")
	waiter := start(t, server, "w2", func(cfg *locking.Config) { cfg.Observer = observed })
	held, err := holder.Acquire(t.Context(), locking.Request{Key: "k", Job: "37", Operation: "sync"})
	if err != nil {
		t.Fatal(err)
	}

	timeout := timesOut(t, waiter, locking.Request{Key: "k", Job: "42", Wait: time.Second})
	if timeout.Holder.Job != "37" || timeout.Holder.Worker != "w1" || timeout.Holder.Operation != "sync" ||
		timeout.Holder.Fence != held.Fence() || timeout.Waited < time.Second || timeout.Key != "k" {
		t.Fatalf("got %+v", timeout)
	}
	if told := timeout.Error(); !strings.HasPrefix(told, "job 42 waited ") || !strings.HasSuffix(told, "for k, held by job 37 (worker w1, sync)") {
		t.Fatalf("the error reads %q", told)
	}

	warned, failed := waiter.log.all("waiting for lock"), waiter.log.all("lock timeout")
	if len(warned) != 1 || warned[0].level != slog.LevelDebug || warned[0].attrs["job"] != "42" ||
		warned[0].attrs["holder_job"] != "37" || warned[0].attrs["holder_worker"] != "w1" || warned[0].attrs["key"] != "k" {
		t.Fatalf("the wait was logged as %v", warned)
	}
	if len(failed) != 1 || failed[0].level != slog.LevelError || failed[0].attrs["holder_job"] != "37" || failed[0].attrs["waited"] == "" {
		t.Fatalf("the timeout was logged as %v", failed)
	}
	if acquired := holder.log.all("lock acquired"); len(acquired) != 1 || acquired[0].level != slog.LevelDebug {
		t.Fatalf("the acquisition was logged as %v", acquired)
	}
	if holder.log.count("waiting for lock") != 0 {
		t.Fatal("a request that did not wait logged a wait")
	}
	if got := observed.all(); got["began"] == 0 || got["timeout"] != 1 || got["acquired"] != 0 {
		t.Fatalf("observed %v", got)
	}
	nothingQueued(t, server, waiter, "k")
}

func TestSkipDoesNotWait(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, other := start(t, server, "w1"), start(t, server, "w2")
	skip := locking.Request{Key: "k", Job: "cron", IfHeld: locking.Skip}
	first, err := p.Acquire(t.Context(), skip)
	if err != nil {
		t.Fatalf("a free key was skipped: %v", err)
	}
	for where, locker := range map[string]process{"same process": p, "another": other} {
		_, err := locker.Acquire(t.Context(), skip)
		wantErr(t, err, locking.ErrHeld)
		if want := "k is held by job cron (worker w1)"; err.Error() != want {
			t.Fatalf("%s: got %v, want %s", where, err, want)
		}
	}
	if n := server.Client().Exists(t.Context(), prefix+"k:queue").Val(); n != 0 {
		t.Fatal("a skipped request is in the queue")
	}
	release(t, first)
	if first, err = other.Acquire(t.Context(), skip); err != nil {
		t.Fatalf("a released key was skipped: %v", err)
	}
	release(t, first)
}

func TestInvalidRequestsAndConfigsAreRejected(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := start(t, server, "w1")
	for name, req := range map[string]locking.Request{
		"no key":                  {},
		"a key with NUL":          {Key: "k\x00"},
		"the key of a queue":      {Key: "k:queue"},
		"the key of its waiters":  {Key: "k:waiters"},
		"a negative wait":         {Key: "k", Wait: -1},
		"a floor beyond counting": {Key: "k", Floor: 1<<53 - 2},
		"an unknown policy":       {Key: "k", IfHeld: 7},
	} {
		if _, err := p.Acquire(t.Context(), req); !errors.Is(err, locking.ErrBadRequest) {
			t.Errorf("a request with %s: got error %v; want it rejected", name, err)
		}
	}
	client, cluster := server.Client(), redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr}})
	defer cluster.Close()
	for name, cfg := range map[string]locking.Config{
		"no Redis":                   {},
		"too short a lease":          {Redis: client, Lease: time.Millisecond},
		"a negative wait":            {Redis: client, Wait: -1},
		"a cluster without hash tag": {Redis: cluster, Prefix: "lock:"},
	} {
		if l, err := locking.New(cfg); err == nil {
			_ = l.Close(t.Context())
			t.Errorf("a config with %s was accepted", name)
		}
	}
}

func TestCancelledWaitLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	holder, waiter := start(t, server, "w1"), start(t, server, "w2")
	held := must(t, holder, "k", "37")
	why := errors.New("no longer needed")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := queueUp(t, waiter, ctx, locking.Request{Key: "k", Job: "42"})
	if n := server.Client().ZCard(t.Context(), prefix+"k:queue").Val(); n != 1 {
		t.Fatalf("%d in the queue; want 1", n)
	}
	cancel(why)
	wantErr(t, soon(t, done, "the cancelled wait").err, why)
	nothingQueued(t, server, waiter, "k")
	release(t, held)
	release(t, must(t, holder, "k", "38"))
}

func TestGrantDuringCancellationIsReleased(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	holder, waiter, third := start(t, server, "w1"), start(t, server, "w2"), start(t, server, "w3")
	awaitSubscription(t, waiter, holder)
	fastest := time.Hour
	for i := range 3 { // the machine may be slow temporarily
		key := fmt.Sprint("k", i) // the waiter may still be withdrawing from the previous one
		held := must(t, holder, key, "37")
		ctx, cancel := context.WithCancel(t.Context())
		done := queueUp(t, waiter, ctx, locking.Request{Key: key, Job: "42"})
		there, let := waiter.calls.hold(locking.ReleaseHash)
		cancel()
		wantErr(t, soon(t, done, "the cancelled wait").err, context.Canceled)
		soon(t, there, "the word that it waits no more")
		release(t, held) // Redis does not know about the cancellation, and grants the lease
		let()
		begun := time.Now()
		release(t, must(t, third, key, "43"))
		fastest = min(fastest, time.Since(begun))
	}
	if fastest > 400*time.Millisecond {
		t.Errorf("the key was free only after %v: a grant was not given back", fastest)
	}
}

func TestLostReplyDoesNotGrantTwice(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, other := start(t, server, "w1"), start(t, server, "w2")
	awaitSubscription(t, other, p)
	before := p.calls.count(locking.AcquireHash)
	p.calls.loseReply(locking.AcquireHash, 1)
	l := must(t, p, "k", "1")
	if n := p.calls.count(locking.AcquireHash) - before; n != 2 {
		t.Fatalf("asked %d times; want 2", n)
	}
	if got := server.Client().HGet(t.Context(), prefix+"k", "fence").Val(); got != fence(l) {
		t.Fatalf("the fence is %s; Redis has %s", fence(l), got)
	}
	waiting := queueUp(t, other, t.Context(), locking.Request{Key: "k", Job: "2"})
	local := queueUp(t, p, t.Context(), locking.Request{Key: "k", Job: "3"})
	p.calls.loseReply(locking.ReleaseHash, 1)
	release(t, l)
	release(t, soon(t, waiting, "the other process").ok(t))
	release(t, soon(t, local, "the same process").ok(t))
}

func TestUnreachableRedisIsUnavailableNotATimeout(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := start(t, server, "w1")
	server.Stop()
	_, err := p.Acquire(t.Context(), locking.Request{Key: "k", Job: "42", Wait: 200 * time.Millisecond})
	wantErr(t, err, locking.ErrUnavailable)
	if errors.Is(err, locking.ErrTimeout) {
		t.Fatalf("got a timeout: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = p.Acquire(ctx, locking.Request{Key: "k", Job: "42"})
	wantErr(t, err, locking.ErrUnavailable)
	wantErr(t, err, context.DeadlineExceeded)

	done := make(chan result, 1)
	go func() {
		l, err := p.Acquire(t.Context(), locking.Request{Key: "k"})
		done <- result{l, err}
	}()
	server.Restart()
	release(t, soon(t, done, "the wait that outlived the outage").ok(t))
}

// nothingQueued checks that p's withdrawn tickets have left the queue of key.
func nothingQueued(t *testing.T, server *redistest.Server, p process, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	wantErr(t, p.Close(ctx), nil) // Close waits for withdrawals
	client := server.Client()
	for _, k := range []string{prefix + key + ":queue", prefix + key + ":waiters"} {
		if n, err := client.Exists(t.Context(), k).Result(); err != nil || n != 0 {
			t.Fatalf("%s still exists (%v)", k, err)
		}
	}
}
