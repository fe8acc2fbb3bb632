package locking_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"lockstep/internal/redistest"
	"lockstep/locking"
)

func TestStatusListsHolderAndWaitersInOrder(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	i := locking.NewInspector(server.Client(), prefix)
	if s, err := i.Status(t.Context(), "k"); err != nil || s.Held || s.Fence != 0 || len(s.Waiters) != 0 {
		t.Errorf("a key nobody asked for: %+v, %v", s, err)
	}
	w1, w2, w3 := start(t, server, "w1"), start(t, server, "w2"), start(t, server, "w3")
	awaitSubscription(t, w2, w1) // the release passes over a waiter that does not listen yet
	awaitSubscription(t, w3, w1)
	held := must(t, w1, "k", "37")
	second := queueUp(t, w2, t.Context(), locking.Request{Key: "k", Job: "42", Operation: "sync"})
	third := queueUp(t, w3, t.Context(), locking.Request{Key: "k", Job: "43"})

	s, err := i.Status(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if !s.Held || s.Holder.Worker != "w1" || s.Holder.Job != "37" || s.Fence != held.Fence() || s.Holder.Fence != held.Fence() {
		t.Errorf("status %+v, want w1 with job 37 and fence %d", s, held.Fence())
	}
	if s.Holder.Remaining <= 0 || s.Holder.Remaining > 2*time.Second || time.Since(s.Holder.Since).Abs() > time.Minute {
		t.Errorf("remaining %v, since %v", s.Holder.Remaining, s.Holder.Since)
	}
	if want := []locking.Waiter{{"w2", "42", "sync"}, {"w3", "43", ""}}; !slices.Equal(s.Waiters, want) {
		t.Errorf("waiters %+v, want %+v", s.Waiters, want)
	}

	release(t, held)
	release(t, soon(t, second, "the second").ok(t))
	release(t, soon(t, third, "the third").ok(t))
	if s, err := i.Status(t.Context(), "k"); err != nil || s.Held || s.Fence <= held.Fence() || len(s.Waiters) != 0 {
		t.Errorf("after the last release: %+v, %v; want it free, its last fence kept", s, err)
	}
}

func TestListShowsOnlyHeldLocksInFewRequests(t *testing.T) {
	t.Parallel()
	const n = 250
	server := redistest.Start(t)
	p := start(t, server, "w1", lease(time.Minute))
	other := start(t, server, "w2", func(cfg *locking.Config) { cfg.Prefix = "{t}else:" })
	release(t, must(t, p, "free", ""))
	defer release(t, must(t, other, "elsewhere", ""))
	server.Client().Set(t.Context(), prefix+"not-a-lock", "x", 0)
	for k := range n {
		defer release(t, must(t, p, fmt.Sprintf("k%03d", k), fmt.Sprint(k)))
	}
	client, requests := server.Client(), &redistest.RoundTrips{}
	client.AddHook(requests)
	list, err := locking.NewInspector(client, prefix).List(t.Context())
	if err != nil || len(list) != n {
		t.Fatalf("%d locks, %v; want %d", len(list), err, n)
	}
	for k, s := range list {
		if s.Key != fmt.Sprintf("k%03d", k) || s.Holder.Job != fmt.Sprint(k) {
			t.Errorf("%s is held by %+v", s.Key, s.Holder)
		}
	}
	if got := requests.Load(); got > n/10 {
		t.Errorf("%d requests for %d locks; want one for many", got, n)
	}
}

func TestForceReleaseCancelsTheHolderAndGrantsTheNext(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	i := locking.NewInspector(server.Client(), prefix)
	w1, w2 := start(t, server, "w1", lease(time.Minute)), start(t, server, "w2", lease(time.Minute)) // so long that no renewal detects it
	held := must(t, w1, "k", "37")
	next := queueUp(t, w2, t.Context(), locking.Request{Key: "k", Job: "42"})

	if _, err := i.ForceRelease(t.Context(), "k", held.Fence()-1); !errors.Is(err, locking.ErrNotHeld) {
		t.Fatalf("another fence: %v, want ErrNotHeld", err)
	}
	if held.Context().Err() != nil {
		t.Fatal("the holder of another fence is cancelled")
	}
	began := time.Now()
	former, err := i.ForceRelease(t.Context(), "k", held.Fence())
	if err != nil || former.Worker != "w1" || former.Job != "37" || former.Fence != held.Fence() {
		t.Fatalf("%+v, %v; want the former holder", former, err)
	}
	soon(t, held.Context().Done(), "cancellation of the holder")
	if cause := context.Cause(held.Context()); !errors.Is(cause, locking.ErrLost) {
		t.Errorf("cause %v, want ErrLost", cause)
	}
	wantErr(t, held.Confirm(t.Context()), locking.ErrLost)
	wantErr(t, held.Release(t.Context()), locking.ErrLost)

	lease := soon(t, next, "the next in line").ok(t)
	if waited := time.Since(began); waited < 2*time.Second {
		t.Errorf("the next in line has it after %v, within two seconds", waited)
	}
	if lease.Fence() <= held.Fence() {
		t.Errorf("fence %d after %d", lease.Fence(), held.Fence())
	}
	release(t, lease)
	if _, err := i.ForceRelease(t.Context(), "k", lease.Fence()); !errors.Is(err, locking.ErrNotHeld) {
		t.Errorf("a free key: %v, want ErrNotHeld", err)
	}
}
