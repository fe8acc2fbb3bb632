package locking_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"lockstep/internal/redistest"
	"lockstep/locking"
)

func fence(l *locking.Lease) string { return strconv.FormatUint(l.Fence(), 10) }

func micros(t testing.TB, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestProcessesAreServedInOrderOfArrival(t *testing.T) {
	server := redistest.Start(t)
	first := start(t, server, "w0")
	held := must(t, first, "k", "0")
	var waits []<-chan result
	var processes []process
	for i := 1; i <= 5; i++ {
		p := start(t, server, fmt.Sprint("w", i))
		awaitSubscription(t, p, first)
		processes = append(processes, p)
		waits = append(waits, queueUp(t, p, t.Context(), locking.Request{Key: "k", Job: fmt.Sprint(i)}))
	}
	polls := make([]int, len(processes))
	for i, p := range processes {
		polls[i] = p.calls.count(locking.AcquireHash)
	}
	begun := time.Now()
	for i, wait := range waits {
		before := held
		release(t, held)
		held = soon(t, wait, fmt.Sprint("waiter ", i+1)).ok(t)
		if held.Fence() <= before.Fence() {
			t.Fatalf("fence %d follows %d", held.Fence(), before.Fence())
		}
		for j := i + 1; j < len(waits); j++ {
			if len(waits[j]) > 0 {
				t.Fatalf("waiter %d went before %d", j+1, i+1)
			}
		}
	}
	release(t, held)
	if time.Since(begun) > 800*time.Millisecond {
		t.Skip("too slow a machine to tell a hand-off from a poll")
	}
	for i, p := range processes {
		if n := p.calls.count(locking.AcquireHash); n != polls[i] {
			t.Errorf("waiter %d polled %d times; want to be woken", i+1, n-polls[i])
		}
	}
}

func TestRequestsOfAProcessShareATicket(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	a, b := start(t, server, "a"), start(t, server, "b")
	awaitSubscription(t, a, b)
	awaitSubscription(t, b, a)
	held := must(t, a, "k", "a0")
	var local []<-chan result
	for i := 1; i <= 3; i++ {
		local = append(local, queueUp(t, a, t.Context(), locking.Request{Key: "k", Job: fmt.Sprint("a", i)}))
	}
	if n := client.Exists(t.Context(), prefix+"k:queue").Val(); n != 0 {
		t.Fatal("the holder's process is in the queue too")
	}

	// A process without competitors hands the lease to its own next request, in the round trip of the release.
	polls, released := a.calls.count(locking.AcquireHash), a.calls.count(locking.ReleaseHash)
	release(t, held)
	next := soon(t, local[0], "a1").ok(t)
	if next.Fence() <= held.Fence() || next.Guard().Owner == held.Guard().Owner {
		t.Fatalf("the local grant is %+v after %+v; want one of its own", next.Guard(), held.Guard())
	}
	if a.calls.count(locking.AcquireHash) != polls || a.calls.count(locking.ReleaseHash) != released+1 {
		t.Fatal("the local grant took more than one call")
	}

	// With other processes waiting, each process has one turn.
	b1 := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "b1"})
	b2 := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "b2"})
	if n := client.ZCard(t.Context(), prefix+"k:queue").Val(); n != 1 {
		t.Fatalf("%d tickets in the queue; want one for each process", n)
	}
	for i, turn := range []<-chan result{b1, local[1], b2, local[2]} {
		release(t, next)
		next = soon(t, turn, fmt.Sprint("turn ", i)).ok(t)
	}
	release(t, next)
}

func TestTicketSurvivesItsRequester(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b, c := start(t, server, "a"), start(t, server, "b"), start(t, server, "c")
	awaitSubscription(t, b, a)
	awaitSubscription(t, c, a)
	held := must(t, a, "k", "a0")
	ctx, cancel := context.WithCancel(t.Context())
	first := queueUp(t, b, ctx, locking.Request{Key: "k", Job: "b1"})
	second := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "b2"})
	last := queueUp(t, c, t.Context(), locking.Request{Key: "k", Job: "c1"})
	polls := b.calls.count(locking.AcquireHash)
	cancel()
	wantErr(t, soon(t, first, "the cancelled wait").err, context.Canceled)
	for b.calls.count(locking.AcquireHash) == polls { // until Redis knows the new requester
		time.Sleep(time.Millisecond)
	}
	release(t, held)
	l := soon(t, second, "b2").ok(t)
	if job := server.Client().HGet(t.Context(), prefix+"k", "job").Val(); job != "b2" {
		t.Fatalf("Redis says that job %s holds the lease", job)
	}
	release(t, l)
	release(t, soon(t, last, "c1").ok(t))
}

func TestPollingReplacesLostMessages(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t)
	admin := server.Client()
	a, b := start(t, server, "a"), start(t, server, "b")
	for range 3 {
		held := must(t, a, "k", "a")
		wait := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "b"})
		if err := admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err(); err != nil {
			t.Fatal(err)
		}
		release(t, held)
		release(t, soon(t, wait, "the waiter whose connection was killed").ok(t))
	}
}

func TestLateMessageOfAReleasedGrantIsIgnored(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	a, b := start(t, server, "a"), start(t, server, "b")
	awaitSubscription(t, b, a)
	other := must(t, a, "other", "a1")
	wait := queueUp(t, b, t.Context(), locking.Request{Key: "other", Job: "b1"})
	l := must(t, b, "k", "b2")
	h := client.HGetAll(t.Context(), prefix+"k").Val()
	releases := b.calls.count(locking.ReleaseHash)

	there, let := b.calls.hold(locking.ReleaseHash)
	defer let()
	returned := make(chan error, 1)
	go func() { returned <- l.Release(t.Context()) }()
	soon(t, there, "the release")
	message := fmt.Sprintf("%s %s %s %s %sk", h["owner"], h["since"], h["fence"], h["expires"], prefix)
	if n := client.Publish(t.Context(), h["channel"], message).Val(); n != 1 {
		t.Fatalf("%d processes heard the message; want 1", n)
	}
	release(t, other)
	next := soon(t, wait, "what was sent after the message").ok(t)
	let()
	wantErr(t, soon(t, returned, "the release"), nil)
	release(t, next)
	wantErr(t, b.Close(t.Context()), nil)
	if n := b.calls.count(locking.ReleaseHash) - releases; n != 2 {
		t.Fatalf("two leases were returned in %d calls", n)
	}
}

func TestProcessesTakeTurns(t *testing.T) {
	const total = 400
	server := redistest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	grants, all := make([]int, 4), 0
	done := make(chan int)
	goroutines := 0
	helper := start(t, server, "helper")
	var processes []process
	for i := range grants {
		processes = append(processes, start(t, server, fmt.Sprint("w", i)))
		awaitSubscription(t, processes[i], helper)
	}
	for i, p := range processes {
		for range 4 + 6*i {
			goroutines++
			go func() {
				n := 0
				for ctx.Err() == nil {
					if p.Do(ctx, locking.Request{Key: "k"}, func(context.Context, *locking.Lease) error {
						grants[i]++ // guarded only by the lock
						if all++; all == total {
							cancel()
						}
						return nil
					}) == nil {
						n++
					}
				}
				done <- n
			}()
		}
	}
	for range goroutines {
		<-done
	}
	fewest, most := grants[0], grants[0]
	for _, n := range grants {
		fewest, most = min(fewest, n), max(most, n)
	}
	if float64(fewest) < 0.8*float64(most) {
		t.Fatalf("grants per process: %v", grants)
	}
}
