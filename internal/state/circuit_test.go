package state_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/locking"
)

var policy = state.CircuitPolicy{Failures: 3, Open: time.Minute, Max: 3 * time.Minute}

// breaker is the circuit breaker of one repository, with a locker for its leases.
type breaker struct {
	t      *testing.T
	client redis.UniversalClient
	store  *state.Store
	locker *locking.Locker
	repo   events.RepoPath
}

func newBreaker(t *testing.T) *breaker {
	t.Helper()
	client := redistest.Start(t).Client()
	locker, err := locking.New(locking.Config{Redis: client, Prefix: events.DefaultNamespace.Locks(), Worker: "w1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := locker.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	repo, err := events.ParseRepoPath("Acme/Widgets")
	if err != nil {
		t.Fatal(err)
	}
	return &breaker{t, client, state.NewStore(client, events.DefaultNamespace), locker, repo}
}

func (b *breaker) lease() *locking.Lease {
	b.t.Helper()
	lease, err := b.locker.Acquire(context.Background(), locking.Request{Key: b.repo.Key()})
	if err != nil {
		b.t.Fatal(err)
	}
	return lease
}

// fail counts a failure under a new lease.
func (b *breaker) fail() (state.Circuit, bool) {
	b.t.Helper()
	lease := b.lease()
	defer func() { _ = lease.Release(context.Background()) }()
	return b.failUnder(lease.Fence())
}

func (b *breaker) failUnder(fence uint64) (state.Circuit, bool) {
	b.t.Helper()
	circuit, opened, err := b.store.Failed(context.Background(), b.repo, fence, policy)
	if err != nil {
		b.t.Fatal(err)
	}
	return circuit, opened
}

func (b *breaker) now() state.Circuit {
	b.t.Helper()
	circuit, err := b.store.Circuit(context.Background(), b.repo)
	if err != nil {
		b.t.Fatal(err)
	}
	return circuit
}

// set sets a field of the repository's state.
func (b *breaker) set(field string, value int64) {
	b.t.Helper()
	if err := b.client.HSet(context.Background(), events.DefaultNamespace.Repo(b.repo), field, strconv.FormatInt(value, 10)).Err(); err != nil {
		b.t.Fatal(err)
	}
}

// lapse ends the open time.
func (b *breaker) lapse() { b.set("circuit_open_until", time.Now().Add(-time.Hour).UnixMilli()) }

func TestConsecutiveFailuresOpenTheCircuit(t *testing.T) {
	t.Parallel()
	b := newBreaker(t)
	if c := b.now(); c.Phase() != state.CircuitClosed || c.Failures != 0 || c.ResetFields() != nil {
		t.Fatalf("at first %+v", c)
	}
	for n := 1; n <= policy.Failures; n++ {
		c, opened := b.fail()
		if want := n == policy.Failures; opened != want || (c.Phase() == state.CircuitOpen) != want || c.Failures != n {
			t.Fatalf("failure %d: opened %v, %+v", n, opened, c)
		}
	}
	c := b.now()
	if left := c.Remaining(); left <= policy.Open/2 || left > policy.Open {
		t.Errorf("open for another %v, want most of %v", left, policy.Open)
	}
	if c, opened := b.fail(); opened || c.Failures != 4 || c.Trips != 1 {
		t.Errorf("a failure while open: opened %v, %+v; want it only counted", opened, c)
	}
}

func TestFailedProbesDoubleTheOpenTime(t *testing.T) {
	t.Parallel()
	b := newBreaker(t)
	b.set("failures", int64(policy.Failures)-1)
	for trip, span := range []time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute, 3 * time.Minute} {
		c, opened := b.fail()
		if !opened || c.Trips != trip+1 {
			t.Fatalf("trip %d: opened %v, %+v", trip+1, opened, c)
		}
		if got := c.Until.Sub(c.Now); got < span*3/4-time.Millisecond || got > span {
			t.Errorf("trip %d: open for %v, want three quarters to all of %v", trip+1, got, span)
		}
		b.lapse()
		if c := b.now(); c.Phase() != state.CircuitHalfOpen || c.Remaining() != 0 {
			t.Errorf("trip %d: %v with %v left after the open time", trip+1, c.Phase(), c.Remaining())
		}
	}
	b.set("circuit_trips", 5000) // the doubling must not overflow
	if c, opened := b.fail(); !opened || c.Until.Sub(c.Now) > policy.Max {
		t.Errorf("after many trips: opened %v, %+v", opened, c)
	}
}

func TestSuccessResetsTheCircuit(t *testing.T) {
	t.Parallel()
	b := newBreaker(t)
	for range policy.Failures {
		b.fail()
	}
	fields := b.now().ResetFields()
	if err := b.client.HSet(context.Background(), events.DefaultNamespace.Repo(b.repo), fields).Err(); err != nil {
		t.Fatal(err)
	}
	if c := b.now(); c.Phase() != state.CircuitClosed || c.Failures != 0 || !c.Until.IsZero() {
		t.Errorf("after a success %+v", c)
	}
	if c, opened := b.fail(); opened || c.Failures != 1 {
		t.Errorf("the next failure: opened %v, %+v; want the count to restart", opened, c)
	}
}

func TestStaleHolderCountsNoFailure(t *testing.T) {
	t.Parallel()
	b := newBreaker(t)
	stale := b.lease()
	if err := stale.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	if c, _ := b.failUnder(stale.Fence()); c.Failures != 1 {
		t.Errorf("without a newer lease: %+v, want the failure counted", c)
	}
	current := b.lease()
	defer func() { _ = current.Release(context.Background()) }()
	for name, fence := range map[string]uint64{"former lease": stale.Fence(), "no lease": 0} {
		if c, opened := b.failUnder(fence); opened || c.Failures != 1 || b.now().Failures != 1 {
			t.Errorf("fence of the %s: opened %v, %+v; want nothing counted", name, opened, c)
		}
	}
}

func TestLoadedRepositoryHasItsCircuit(t *testing.T) {
	t.Parallel()
	b := newBreaker(t)
	for range policy.Failures {
		b.fail()
	}
	known, err := b.store.Load(context.Background(), b.repo)
	if err != nil {
		t.Fatal(err)
	}
	want := b.now()
	if got := known.CircuitAt(want.Now); got != want {
		t.Errorf("loaded %+v, want %+v", got, want)
	}
	if known.Path() != "Acme/Widgets" {
		t.Errorf("path %q, want that of the failures", known.Path())
	}
}
