package locking_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/testenv"
	"lockstep/locking"
)

// dial opens a client for any topology, and closes it at the end of the test.
func dial(t testing.TB, url string) redis.UniversalClient {
	t.Helper()
	server, err := redisx.Parse(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := server.Open()
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// at makes a process use another Redis server.
func at(t testing.TB, url string) func(*locking.Config) {
	return func(cfg *locking.Config) {
		cfg.Redis.(*tap).UniversalClient = dial(t, url)
		cfg.PubSub = dial(t, url)
	}
}

// bare makes a process use its client without the tap, so that New sees the client's type.
func bare(cfg *locking.Config) { cfg.Redis = cfg.Redis.(*tap).UniversalClient }

// until polls a condition until it holds, or fails the test.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after %v: %s", patience, what)
		}
	}
}

// disk is storage that compares fences.
type disk struct {
	mu       sync.Mutex
	highest  uint64
	accepted []uint64
}

func (d *disk) write(fence uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if fence < d.highest {
		return false
	}
	d.highest = fence
	d.accepted = append(d.accepted, fence)
	return true
}

func TestSentinelFailsOver(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		lease  time.Duration
		missed bool // the replica misses the grant, and the waiter arrives before the holder
		kept   bool // the holder must keep its lease
	}{
		"to a replica that has the grant":                      {lease: 14 * time.Second, kept: true},
		"to a replica that has it, after it may have run out":  {lease: 500 * time.Millisecond},
		"to a replica that has missed the grant and the queue": {lease: 2 * time.Second, missed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !tc.missed {
				testenv.Long(t)
			}
			s := redistest.StartSentinel(t)
			deaf := func(cfg *locking.Config) { cfg.PubSub = redistest.Start(t).Client() }
			a := start(t, s.Master, "a", at(t, s.URL()), lease(tc.lease))
			b := start(t, s.Master, "b", at(t, s.URL()), lease(tc.lease), deaf)
			release(t, must(t, a, "k", "0")) // so that the replica knows the key
			s.Replicate()
			if tc.missed {
				s.CutOff()
			}
			l := must(t, a, "k", "1")
			wait := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "2"})
			if !tc.missed {
				s.Replicate()
			}
			var d disk
			var writing sync.WaitGroup
			defer writing.Wait()
			stop := make(chan struct{})
			defer close(stop)
			writing.Go(func() {
				for {
					d.write(l.Fence())
					select {
					case <-stop:
						return
					case <-l.Context().Done():
						return
					case <-time.After(time.Millisecond):
					}
				}
			})

			let := func() {}
			if tc.missed {
				_, let = a.calls.hold(locking.RenewHash)
				defer let()
			}
			s.Master.Stop()
			renewed := a.calls.count(locking.RenewHash)
			until(t, "the replica is promoted and one process has noticed", func() bool {
				return len(wait) > 0 || l.Context().Err() != nil || a.calls.count(locking.RenewHash) > renewed
			})
			if !s.Promoted() {
				t.Fatal("a process saw a new master before the promotion")
			}
			var next *locking.Lease
			if len(wait) > 0 { // both hold the lease until the first holder's next renewal or the one after
				next = (<-wait).ok(t)
				if !d.write(next.Fence()) {
					t.Fatal("the storage refused the later grant")
				}
				if tc.missed {
					wantErr(t, l.Context().Err(), nil)
				}
				renewed := a.calls.count(locking.RenewHash)
				let()
				soon(t, l.Context().Done(), "the loss")
				if n := a.calls.count(locking.RenewHash) - renewed; n > 2 {
					t.Errorf("the first has lost the lease after %d renewals", n)
				}
			}
			err := l.Confirm(t.Context())
			switch {
			case err == nil:
				t.Log("the holder has kept its lease")
				if tc.missed || next != nil || len(wait) > 0 {
					t.Fatal("the first lease was confirmed, although it was granted to another or never recorded")
				}
				release(t, l)
			default:
				t.Log("the holder has lost its lease")
				wantErr(t, err, locking.ErrLost)
				wantErr(t, context.Cause(l.Context()), locking.ErrLost)
				if tc.kept {
					t.Fatal("a lease was lost although the replica knew it")
				}
				wantErr(t, l.Release(t.Context()), locking.ErrLost)
			}
			if next == nil {
				next = soon(t, wait, "the waiter without messages").ok(t)
			}
			if next.Fence() <= l.Fence() {
				t.Fatalf("fence %d follows %d", next.Fence(), l.Fence())
			}
			if !d.write(next.Fence()) || d.write(l.Fence()) {
				t.Fatal("the storage cannot tell the two apart")
			}
			d.mu.Lock()
			if !slices.IsSorted(d.accepted) {
				t.Error("a lower fence was accepted after a higher one")
			}
			d.mu.Unlock()
			wantErr(t, next.Confirm(t.Context()), nil)
			release(t, next)

			for range 8 { // the new master sends messages: at least one hand-over must not need a poll
				held := must(t, b, "again", "")
				wait := queueUp(t, a, t.Context(), locking.Request{Key: "again"})
				polls := a.calls.count(locking.AcquireHash)
				release(t, held)
				release(t, soon(t, wait, "a hand-over").ok(t))
				if a.calls.count(locking.AcquireHash) == polls {
					return
				}
			}
			t.Fatal("no message has come since the failover")
		})
	}
}

func TestOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	node := cluster.Nodes[0]
	client := dial(t, cluster.URL()).(*redis.ClusterClient)
	const longer = prefix + "lock:"
	on := func(worker, prefix string) process {
		return start(t, node, worker, at(t, cluster.URL()), bare, func(cfg *locking.Config) { cfg.Prefix = prefix })
	}
	a, b, c := on("a", longer), on("b", longer), on("c", longer)
	inspector := locking.NewInspector(client, longer)

	t.Run("a lease is handed over in order of arrival, by message", func(t *testing.T) {
		fastest := time.Hour
		for range 3 { // a poll may coincide with a hand-over
			held := must(t, a, "k", "1")
			second := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "2"})
			third := queueUp(t, c, t.Context(), locking.Request{Key: "k", Job: "3"})
			begun := time.Now()
			release(t, held)
			next := soon(t, second, "the second").ok(t)
			if len(third) > 0 || next.Fence() <= held.Fence() {
				t.Fatalf("fence %d follows %d", next.Fence(), held.Fence())
			}
			release(t, next)
			last := soon(t, third, "the third").ok(t)
			fastest = min(fastest, time.Since(begun))
			if last.Fence() <= next.Fence() {
				t.Fatalf("fence %d follows %d", last.Fence(), next.Fence())
			}
			release(t, last)
		}
		if fastest > 300*time.Millisecond {
			t.Errorf("two hand-overs took %v at best; want no poll", fastest)
		}
	})

	t.Run("all that belongs to a lock is in one slot", func(t *testing.T) {
		held, other := must(t, a, "k", "1"), must(t, b, "another", "2")
		wait := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "3"})
		var mu sync.Mutex
		slots, found := map[int64]bool{}, []string{}
		if err := client.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
			keys, err := node.Keys(ctx, "*").Result()
			mu.Lock()
			defer mu.Unlock()
			for _, key := range keys {
				slots[client.ClusterKeySlot(ctx, key).Val()] = true
			}
			found = append(found, keys...)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(found)
		if want := []string{longer + "another", longer + "k", longer + "k:queue", longer + "k:waiters"}; !slices.Equal(found, want) || len(slots) != 1 {
			t.Errorf("in %d slots: %q; want %q in one", len(slots), found, want)
		}
		release(t, held)
		release(t, soon(t, wait, "the waiter").ok(t))
		release(t, other)
	})

	t.Run("it can be inspected, and released by force", func(t *testing.T) {
		held, other := must(t, a, "k", "1"), must(t, b, "another", "2")
		wait := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "3"})
		later := queueUp(t, c, t.Context(), locking.Request{Key: "k", Job: "4"})
		status, err := inspector.Status(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		waiters := []locking.Waiter{{Worker: "b", Job: "3"}, {Worker: "c", Job: "4"}}
		if !status.Held || status.Holder.Job != "1" || status.Fence != held.Fence() || !slices.Equal(status.Waiters, waiters) {
			t.Errorf("the status is %+v", status)
		}
		all, err := inspector.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(all) != 2 || all[0].Key != "another" || all[1].Key != "k" {
			t.Errorf("the held locks are %+v", all)
		}
		former, err := inspector.ForceRelease(t.Context(), "k", held.Fence())
		if err != nil || former.Worker != "a" || former.Job != "1" {
			t.Fatalf("released by force: %+v, %v", former, err)
		}
		soon(t, held.Context().Done(), "the cancellation of the holder")
		wantErr(t, context.Cause(held.Context()), locking.ErrLost)
		_, err = inspector.ForceRelease(t.Context(), "k", held.Fence())
		wantErr(t, err, locking.ErrNotHeld)
		next := soon(t, wait, "the first waiter").ok(t)
		if next.Fence() <= held.Fence() {
			t.Errorf("fence %d follows %d", next.Fence(), held.Fence())
		}
		release(t, next)
		release(t, soon(t, later, "the second waiter").ok(t))
		wantErr(t, held.Release(t.Context()), locking.ErrLost)
		release(t, other)
	})

	t.Run("a killed waiter costs one hand-over lease", func(t *testing.T) {
		short := locking.NewInspector(client, prefix)
		inLine := func(n int) func() bool {
			return func() bool {
				status, err := short.Status(t.Context(), "k")
				return err == nil && len(status.Waiters) == n
			}
		}
		a, c := on("a", prefix), on("c", prefix)
		awaitSubscription(t, c, a)
		fastest := time.Hour // the machine may be slow temporarily
		rounds := testenv.Form(1, 4)
		for round := range rounds {
			held := must(t, a, "k", "1")
			dead := exec.Command(os.Args[0])
			dead.Env = append(os.Environ(), childRole+"=holder", childRedis+"="+cluster.URL())
			if err := dead.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = dead.Process.Kill(); _ = dead.Wait() }()
			until(t, "the other process is queued", inLine(1))
			if err := dead.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = dead.Wait()
			wait := queueUp(t, c, t.Context(), locking.Request{Key: "k", Job: fmt.Sprint(round)})
			time.Sleep(time.Duration(round) * 250 * time.Millisecond) // vary the moment between two polls
			if !inLine(2)() {
				t.Fatal("the dead waiter is not in the queue")
			}
			begun := time.Now()
			release(t, held)
			l := soon(t, wait, "the living waiter").ok(t)
			took := time.Since(begun)
			t.Logf("%v", took)
			if took < 500*time.Millisecond {
				t.Errorf("the living waiter had to wait for %v; want 0.7 s", took)
			}
			fastest = min(fastest, took)
			release(t, l)
		}
		if rounds > 1 && fastest > time.Second {
			t.Errorf("the living waiter had to wait for %v at best; want 0.7 s", fastest)
		}
	})
}
