package locking_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/locking"
)

// hang lets Redis hang for d, and returns when it runs again.
func hang(t *testing.T, server *redistest.Server, d time.Duration) {
	t.Helper()
	client := server.Client()
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_ = client.Do(t.Context(), "DEBUG", "SLEEP", fmt.Sprint(d.Seconds())).Err() // times out
	ctx, cancel := context.WithTimeout(t.Context(), d+patience)
	defer cancel()
	for client.Ping(ctx).Err() != nil {
		if ctx.Err() != nil {
			t.Fatal("Redis does not resume")
		}
	}
	if time.Since(began) < d*9/10 {
		t.Fatalf("Redis hung for %v only; want %v", time.Since(began), d)
	}
}

// Each process holds leases that the other one waits for. When Redis resumes, all of them have expired.
func TestLivingHoldersKeepTheirLeasesThroughAHang(t *testing.T) {
	t.Parallel()
	const keys = 30
	term, outage := testenv.Form(2*time.Second, 10*time.Second), testenv.Form(2500*time.Millisecond, 12*time.Second)
	server := redistest.StartReal(t, "--enable-debug-command", "yes")
	observed := &tally{}
	long := func(cfg *locking.Config) { cfg.Observer, cfg.Lease, cfg.Wait = observed, term, 10*time.Minute }
	workers := []process{start(t, server, "a", long), start(t, server, "b", long)}
	idle := start(t, server, "idle", long)
	awaitSubscription(t, workers[0], workers[1])
	awaitSubscription(t, workers[1], workers[0])
	var held []*locking.Lease
	var waits []<-chan result
	for i := range keys {
		key := fmt.Sprint("k", i)
		held = append(held, must(t, workers[i%2], key, "holder"))
		waits = append(waits, queueUp(t, workers[1-i%2], t.Context(), locking.Request{Key: key, Job: "waiter"}))
	}
	for range testenv.Form(1, 5) {
		hang(t, server, outage)
		// These processes have not noticed the hang: their first calls come after it.
		for _, p := range []process{idle, start(t, server, "new", long)} {
			for i := range keys {
				go func() {
					req := locking.Request{Key: fmt.Sprint("k", i), Job: "later", Wait: term / 2}
					_ = p.Do(t.Context(), req, func(context.Context, *locking.Lease) error { return nil })
				}()
			}
		}
		for _, lease := range held {
			wantErr(t, lease.Confirm(t.Context()), nil)
		}
	}
	for i, lease := range held {
		if lease.Context().Err() != nil {
			t.Errorf("the holder of key %d was cancelled: %v", i, context.Cause(lease.Context()))
		}
		_ = lease.Release(t.Context())
	}
	for i, wait := range waits {
		release(t, soon(t, wait, fmt.Sprint("the waiter of key ", i)).ok(t))
	}
	if lost := observed.all()["lost"]; lost > 0 {
		t.Errorf("%d leases were lost", lost)
	}
}

// slow is a Redis that runs each call of a script only after delay, even if its caller has given up, and publishes its
// replies.
type slow struct {
	redis.UniversalClient
	hash    string
	delay   atomic.Int64
	replies chan *redis.Cmd
	done    chan struct{} // closed at the end of the test
	calls   sync.WaitGroup
}

func (s *slow) EvalSha(ctx context.Context, hash string, keys []string, args ...any) *redis.Cmd {
	delay := time.Duration(s.delay.Load())
	if hash != s.hash || delay == 0 {
		return s.UniversalClient.EvalSha(ctx, hash, keys, args...)
	}
	s.calls.Go(func() {
		select {
		case <-time.After(delay):
			s.replies <- s.UniversalClient.EvalSha(context.WithoutCancel(ctx), hash, keys, args...)
		case <-s.done:
		}
	})
	<-ctx.Done()
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(ctx.Err())
	return cmd
}

// startSlow opens a Locker whose calls of one script can be delayed.
func startSlow(t *testing.T, server *redistest.Server, hash string) (process, *slow) {
	t.Helper()
	late := &slow{hash: hash, replies: make(chan *redis.Cmd, 100), done: make(chan struct{})}
	t.Cleanup(func() { // after the Locker is closed
		close(late.done)
		late.calls.Wait()
	})
	p := start(t, server, "w1", func(cfg *locking.Config) {
		late.UniversalClient = cfg.Redis
		cfg.Redis = late
	})
	release(t, must(t, p, "other", "1")) // tells Redis' clock
	return p, late
}

func TestReleaseThatRunsAfterItsDeadlineGrantsNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, late := startSlow(t, server, locking.ReleaseHash)
	held := must(t, p, "k", "2")
	next := queueUp(t, p, t.Context(), locking.Request{Key: "k", Job: "3", Wait: time.Second})
	late.delay.Store(int64(2500 * time.Millisecond))
	if err := held.Release(t.Context()); err == nil {
		t.Fatal("a call without a reply succeeded")
	}
	wantErr(t, soon(t, next, "the next request").err, locking.ErrTimeout)
	reply, err := soon(t, late.replies, "the late call").Slice()
	if err != nil || len(reply) != 1 || reply[0] != "free" {
		t.Errorf("the late call was answered with %v, error %v; want the lease free", reply, err)
	}
	if owner := server.Client().HGet(t.Context(), prefix+"k", "owner").Val(); owner != "" {
		t.Errorf("the late call gave the lease to %q, which had given up", owner)
	}
}

func TestCallThatRunsAfterItsDeadlineChangesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, late := startSlow(t, server, locking.AcquireHash)
	late.delay.Store(int64(400 * time.Millisecond))
	_, err := p.Acquire(t.Context(), locking.Request{Key: "k", Job: "2", Wait: 200 * time.Millisecond})
	if err == nil {
		t.Fatal("a call without a reply succeeded")
	}
	reply, err := soon(t, late.replies, "the late call").Slice()
	if err != nil || len(reply) != 2 || reply[0] != "late" {
		t.Errorf("the late call was answered with %v, error %v", reply, err)
	}
	if n := server.Client().Exists(t.Context(), prefix+"k", prefix+"k:queue", prefix+"k:waiters").Val(); n != 0 {
		t.Errorf("the late call left %d keys in Redis", n)
	}
}

// A new process cannot know whether the holder or Redis was away.
func TestExpiredLeaseIsLeftToItsHolderForAGracePeriod(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fields []any
		term   time.Duration
		least  time.Duration
		most   time.Duration
	}{
		"of a holder":              {[]any{"owner", "stranger", "expires", 1_000_000_000, "since", 1}, 2 * time.Second, time.Second, patience},
		"released by force":        {[]any{"owner", "forced", "expires", 1_000_000_000, "since", 1}, 20 * time.Second, 0, 10 * time.Second},
		"handed over, unconfirmed": {[]any{"owner", "stranger", "expires", 1_000_000_000, "since", 999_900_000}, 2 * time.Second, 200 * time.Millisecond, patience},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			if err := server.Client().HSet(t.Context(), prefix+"k", tc.fields...).Err(); err != nil {
				t.Fatal(err)
			}
			p := start(t, server, "new", lease(tc.term))
			begun := time.Now()
			release(t, must(t, p, "k", "1"))
			if took := time.Since(begun); took < tc.least || took >= tc.most {
				t.Errorf("taken after %v; want %v to %v", took, tc.least, tc.most)
			}
		})
	}
}
