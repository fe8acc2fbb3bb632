package locking_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/locking"
)

// assertFree checks that key is not held.
func assertFree(t *testing.T, p process, key string) {
	t.Helper()
	l, err := p.Acquire(t.Context(), locking.Request{Key: key, IfHeld: locking.Skip})
	if err != nil {
		t.Fatalf("the key is not free: %v", err)
	}
	release(t, l)
}

func config(t testing.TB, server *redistest.Server, name, value string) {
	t.Helper()
	if err := server.Client().Do(t.Context(), "CONFIG", "SET", name, value).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestUnrecordedGrantIsNotAnnounced(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t)
	a, b := start(t, server, "a", lease(time.Hour)), start(t, server, "b")
	awaitSubscription(t, b, a)
	held := must(t, a, "k", "1")
	wait := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "2"})
	config(t, server, "min-replicas-to-write", "1") // every write is refused: NOREPLICAS
	if err := held.Release(t.Context()); err == nil {
		t.Fatal("the release succeeded without a write")
	}
	if len(wait) > 0 {
		t.Fatalf("a grant that is not recorded was announced: %+v", (<-wait).lease.Guard())
	}
	config(t, server, "min-replicas-to-write", "0")
	server.Client().HSet(t.Context(), prefix+"k", "expires", 1)
	release(t, soon(t, wait, "the waiter").ok(t))
}

func TestReleaseWorksWhileRedisIsOutOfMemory(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t)
	a, b := start(t, server, "a", lease(time.Hour)), start(t, server, "b")
	awaitSubscription(t, b, a)
	alone, contended := must(t, a, "alone", "1"), must(t, a, "contended", "2")
	wait := queueUp(t, b, t.Context(), locking.Request{Key: "contended", Job: "3"})
	config(t, server, "maxmemory", "1")
	release(t, alone)
	release(t, contended)
	l := soon(t, wait, "the waiter").ok(t)
	config(t, server, "maxmemory", "0")
	release(t, l)
	assertFree(t, b, "alone")
}

// A message hands the lease to b while b's poll is still in transit. If b releases the lease before Redis receives
// the poll, the poll must not be granted the free lease, because b would not use it.
func TestPollOvertakenByAMessageIsNotGranted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b, c := start(t, server, "a"), start(t, server, "b", lease(20*time.Second)), start(t, server, "c")
	awaitSubscription(t, b, a)
	held := must(t, a, "k", "1")
	wait := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "2"})
	there, let := b.calls.hold(locking.AcquireHash)
	defer let()
	soon(t, there, "a poll")
	polls := b.calls.count(locking.AcquireHash)
	release(t, held)
	select {
	case r := <-wait:
		release(t, r.ok(t))
		let()
	case <-time.After(200 * time.Millisecond):
		let()
		release(t, soon(t, wait, "the waiter").ok(t))
	}
	for b.calls.count(locking.AcquireHash) == polls { // until Redis has answered the poll
		time.Sleep(time.Millisecond)
	}
	assertFree(t, c, "k")
}

func TestFloorAppliesToTheNextRequesterOfATicket(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := start(t, server, "a"), start(t, server, "b")
	awaitSubscription(t, b, a)
	held := must(t, a, "k", "1")
	ctx, cancel := context.WithCancel(t.Context())
	low := queueUp(t, b, ctx, locking.Request{Key: "k", Job: "2"})
	floor := held.Fence() + 1_000_000_000
	high := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "3", Floor: floor})
	there, let := b.calls.hold(locking.AcquireHash)
	defer let()
	cancel()
	wantErr(t, soon(t, low, "the one that leaves").err, context.Canceled)
	soon(t, there, "the question for the one that is left")
	release(t, held) // hands over to the request that was cancelled
	time.AfterFunc(100*time.Millisecond, let)
	l := soon(t, high, "the one that is left").ok(t)
	if l.Fence() <= floor {
		t.Fatalf("fence %d is not above the floor %d", l.Fence(), floor)
	}
	wantErr(t, l.Confirm(t.Context()), nil)
	release(t, l)
}

func TestGrantThatExpiredInTransitIsNotUsed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, other := start(t, server, "w1", lease(100*time.Millisecond)), start(t, server, "w2")
	release(t, must(t, p, "k", "")) // loads the scripts
	var once sync.Once
	granted, taken := make(chan struct{}), make(chan struct{})
	p.calls.mu.Lock()
	p.calls.after = func(hash string) {
		once.Do(func() {
			close(granted)
			<-taken
		})
	}
	p.calls.mu.Unlock()
	wait := make(chan result, 1)
	go func() {
		l, err := p.Acquire(t.Context(), locking.Request{Key: "k"})
		wait <- result{l, err}
	}()
	soon(t, granted, "a grant whose reply is slow")
	theirs := must(t, other, "k", "2")
	close(taken)
	p.log.await(t, "waiting for lock", 1)
	if len(wait) > 0 {
		t.Fatal("a lease started after it was granted to another")
	}
	release(t, theirs)
	release(t, soon(t, wait, "the slow one").ok(t))
}

// Redis is slow and there are many leases to renew, so a round takes longer than a hand-over lease.
func TestHandedOverLeaseIsRenewedDuringALongRound(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t)
	a, b := start(t, server, "a"), start(t, server, "b", lease(4*time.Second))
	awaitSubscription(t, b, a)
	for i := range 1000 {
		must(t, b, fmt.Sprint("other", i), "")
	}
	held := must(t, a, "k", "1")
	wait := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "2"})
	round := make(chan struct{})
	var once sync.Once
	b.calls.mu.Lock()
	b.calls.before = func(hash string, keys []string) {
		if hash == locking.RenewHash && len(keys) > 100 {
			once.Do(func() { close(round) })
			time.Sleep(200 * time.Millisecond)
		}
	}
	b.calls.mu.Unlock()
	soon(t, round, "a round of renewals")
	release(t, held)
	l := soon(t, wait, "the hand-over").ok(t)
	timesOut(t, a, locking.Request{Key: "k", Wait: 1500 * time.Millisecond})
	wantErr(t, l.Confirm(t.Context()), nil)
}

func TestCorruptedLockDoesNotAffectOthers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := start(t, server, "w1", lease(time.Hour))
	spoilt, sound := must(t, p, "spoilt", "1"), must(t, p, "sound", "2")
	server.Client().Set(t.Context(), prefix+"spoilt", "somebody's", 0)
	server.Client().HSet(t.Context(), prefix+"sound", "expires", 1)
	wantErr(t, locking.RenewAll(t.Context(), p.Locker), nil)
	wantErr(t, context.Cause(spoilt.Context()), locking.ErrLost)
	if expires := server.Client().HGet(t.Context(), prefix+"sound", "expires").Val(); expires == "1" {
		t.Fatal("a lease was not renewed because another's key was spoilt")
	}
	release(t, sound)
}

func TestLeaseReleasedDuringReclaimStaysReleased(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, other := start(t, server, "w1", lease(time.Hour)), start(t, server, "w2")
	l := must(t, p, "k", "1")
	server.Client().FlushAll(t.Context())
	there, let := p.calls.hold(locking.ReclaimHash)
	defer let()
	renewed := make(chan error, 1)
	go func() { renewed <- locking.RenewAll(t.Context(), p.Locker) }()
	soon(t, there, "a reclaim")
	_ = l.Release(t.Context())
	let()
	wantErr(t, soon(t, renewed, "the renewal"), nil)
	assertFree(t, other, "k")
}

func TestCloseDuringRelease(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, other := start(t, server, "w1", lease(time.Hour)), start(t, server, "w2")
	l := must(t, p, "k", "1")
	next := queueUp(t, p, t.Context(), locking.Request{Key: "k", Job: "2"})
	there, let := p.calls.hold(locking.ReleaseHash)
	defer let()
	released := make(chan error, 1)
	go func() { released <- l.Release(t.Context()) }()
	soon(t, there, "a release")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantErr(t, p.Close(ctx), context.Canceled)
	wantErr(t, soon(t, next, "the next").err, locking.ErrClosed)
	let()
	wantErr(t, soon(t, released, "the release"), nil)
	assertFree(t, other, "k")
}

func TestNamesAreEscapedAndTruncated(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := start(t, server, "a"), start(t, server, "b")
	awaitSubscription(t, b, a)
	for name, key := range map[string]string{
		"a newline":  "1\n2",
		"a megabyte": strings.Repeat("é", 1<<19),
		"odd bytes":  "\x01\xff\x1b[31m \u2028\"'\\",
	} {
		held, err := a.Acquire(t.Context(), locking.Request{Key: key, Job: key, Operation: key})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		timeout := timesOut(t, b, locking.Request{Key: key, Job: key, Wait: time.Second})
		for _, told := range []string{timeout.Job, timeout.Holder.Job, timeout.Holder.Operation, timeout.Holder.String()} {
			if told == "" || strings.ContainsAny(told, "\n\x01\x1b\u2028") || len(told) > 2000 {
				t.Fatalf("%s: it is shown as %.100q", name, told)
			}
		}
		wait := queueUp(t, b, t.Context(), locking.Request{Key: key, Job: key})
		release(t, held)
		release(t, soon(t, wait, "the waiter").ok(t))
	}
}

// These faults lose neither data nor leases: connections break, replies are lost, scripts are flushed, writes
// are refused, Redis hangs temporarily. Mutual exclusion must therefore be strict, and nothing may be left behind
// at the end.
func TestMutualExclusionThroughFaults(t *testing.T) {
	server := redistest.StartReal(t)
	admin := server.Client()
	var processes []process
	observed := &tally{}
	for i := range 4 {
		p := start(t, server, fmt.Sprint("w", i), lease(3*time.Second), func(cfg *locking.Config) { cfg.Observer = observed })
		p.calls.mu.Lock()
		p.calls.spoil = func(string) bool { return rand.IntN(50) == 0 }
		p.calls.before = func(string, []string) {
			if rand.IntN(100) == 0 {
				time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
			}
		}
		p.calls.mu.Unlock()
		processes = append(processes, p)
	}
	const keys = 3
	var inside [keys]atomic.Int32
	var fences [keys]uint64 // guarded only by the locks
	var grants atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	for g := range 24 {
		done.Go(func() {
			for ctx.Err() == nil {
				k := rand.IntN(keys)
				req := locking.Request{Key: fmt.Sprint(k), Job: fmt.Sprint(g), IfHeld: locking.Policy(rand.IntN(8) / 7)}
				patience, cancel := context.WithCancel(ctx)
				switch rand.IntN(6) {
				case 0:
					time.AfterFunc(time.Duration(rand.IntN(20_000))*time.Microsecond, cancel)
				case 1:
					req.Wait = time.Duration(1 + rand.IntN(20_000_000))
				}
				_ = processes[g%4].Do(patience, req, func(_ context.Context, l *locking.Lease) error {
					if inside[k].Add(1) > 1 {
						t.Errorf("two hold key %d at once", k)
					}
					if l.Fence() <= fences[k] {
						t.Errorf("fence %d follows %d", l.Fence(), fences[k])
					}
					fences[k] = l.Fence()
					if rand.IntN(4) == 0 {
						time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
					}
					inside[k].Add(-1)
					grants.Add(1)
					return nil
				})
				cancel()
			}
		})
	}
	for end := time.Now().Add(testenv.Form(time.Second, 4*time.Second)); time.Now().Before(end); time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond) {
		before := grants.Load()
		switch rand.IntN(6) {
		case 0:
			_ = admin.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub").Err()
		case 1:
			_ = admin.Do(ctx, "CLIENT", "KILL", "TYPE", "normal").Err()
		case 2:
			_ = admin.ScriptFlush(ctx).Err()
		case 3:
			config(t, server, "min-replicas-to-write", "1")
			time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
			config(t, server, "min-replicas-to-write", "0")
		case 4:
			config(t, server, "maxmemory", "1")
			time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
			config(t, server, "maxmemory", "0")
		case 5:
			_ = syscall.Kill(server.Pid(), syscall.SIGSTOP)
			time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
			_ = syscall.Kill(server.Pid(), syscall.SIGCONT)
		}
		for begun := time.Now(); grants.Load() == before; time.Sleep(time.Millisecond) {
			if time.Since(begun) > patience {
				t.Fatalf("nobody has got a lease for %v", patience)
			}
		}
	}
	stop()
	done.Wait()
	t.Logf("%d grants; observed %v", grants.Load(), observed.all())
	for _, p := range processes {
		p.calls.mu.Lock()
		p.calls.spoil, p.calls.before = nil, nil
		p.calls.mu.Unlock()
		closing, cancel := context.WithTimeout(t.Context(), patience)
		wantErr(t, p.Close(closing), nil)
		cancel()
	}
	for k := range keys {
		for _, suffix := range []string{":queue", ":waiters"} {
			if n := admin.Exists(t.Context(), prefix+fmt.Sprint(k)+suffix).Val(); n != 0 {
				t.Errorf("%d%s is left behind", k, suffix)
			}
		}
		if owner := admin.HGet(t.Context(), prefix+fmt.Sprint(k), "owner").Val(); owner != "" {
			t.Errorf("key %d is left with owner %s", k, owner)
		}
	}
	if lost := observed.all()["lost"]; lost > 0 {
		t.Errorf("%d leases were lost", lost)
	}
}
