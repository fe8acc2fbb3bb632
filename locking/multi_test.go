package locking_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"lockstep/internal/redistest"
	"lockstep/locking"
)

func both(a, b string) []locking.Request {
	return []locking.Request{{Key: a, Job: "move"}, {Key: b, Job: "move"}}
}

func TestAcquireAllTakesAllOrNone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, other := start(t, server, "w1"), start(t, server, "w2")
	busy := must(t, other, "b", "37")
	reqs := both("b", "a")
	reqs[0].Wait, reqs[1].Wait = 100*time.Millisecond, 100*time.Millisecond
	until(t, "the wait for a held key ends with ErrTimeout", func() bool {
		_, err := p.AcquireAll(t.Context(), reqs...)
		if err == nil {
			t.Fatal("one key is held, and both were acquired")
		}
		return errors.Is(err, locking.ErrTimeout) // Redis may be too slow for so short a wait
	})
	release(t, must(t, other, "a", "38")) // the other key was released

	release(t, busy)
	leases, err := p.AcquireAll(t.Context(), both("b", "a")...)
	if err != nil {
		t.Fatal(err)
	}
	if leases[0].Key() != "b" || leases[1].Key() != "a" {
		t.Errorf("leases on %s, %s; want them in the order of the requests", leases[0].Key(), leases[1].Key())
	}
	if err := leases.Confirm(t.Context()); err != nil {
		t.Error(err)
	}
	if err := leases.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAcquireAllRefusesAKeyTwice(t *testing.T) {
	t.Parallel()
	p := start(t, redistest.Start(t), "w1")
	if _, err := p.AcquireAll(t.Context(), both("a", "a")...); err == nil {
		t.Error("a lease is not reentrant, and this would wait for itself")
	}
	if _, err := p.AcquireAll(t.Context()); err == nil {
		t.Error("no request gives leases")
	}
}

func TestLosingOneOfSeveralLeasesCancelsTheWork(t *testing.T) {
	t.Parallel()
	for _, lost := range []int{0, 1} {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			p := start(t, server, "w1")
			leases, err := p.AcquireAll(t.Context(), both("b", "a")...)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := locking.NewInspector(server.Client(), prefix).ForceRelease(t.Context(), leases[lost].Key(), leases[lost].Fence()); err != nil {
				t.Fatal(err)
			}
			soon(t, leases.Context().Done(), "cancellation")
			wantErr(t, context.Cause(leases.Context()), locking.ErrLost)
			wantErr(t, leases.Confirm(t.Context()), locking.ErrLost)
			wantErr(t, leases.Release(t.Context()), locking.ErrLost)
		})
	}
}

func TestAcquireAllNeverDeadlocks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	keys := []string{"a", "b", "c"}
	var wg sync.WaitGroup
	for n := range 6 {
		p := start(t, server, fmt.Sprint("w", n))
		wg.Go(func() {
			for round := range 10 {
				leases, err := p.AcquireAll(t.Context(), both(keys[(n+round)%3], keys[(n+2*round+1+round%2)%3])...)
				if err != nil {
					if keys[(n+round)%3] != keys[(n+2*round+1+round%2)%3] {
						t.Errorf("round %d of %d: %v", round, n, err)
					}
					continue
				}
				if err := leases.Release(t.Context()); err != nil && !errors.Is(err, locking.ErrLost) { // the machine may be slow temporarily
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
