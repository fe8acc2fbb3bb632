package locking_test

import (
	"errors"
	"maps"
	"testing"
	"time"

	"lockstep/internal/redistest"
	"lockstep/locking"
)

func TestMarkReleasedFreesALeaseReleasedByAScript(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	observed := &tally{}
	p := start(t, server, "w1", func(cfg *locking.Config) { cfg.Observer = observed })
	l := must(t, p, "k", "1")
	guard := l.Guard()
	if n := server.Client().Exists(t.Context(), guard.Queue).Val(); n != 0 || l.HasLocalWaiters() {
		t.Fatal("nobody waits, but a waiter is reported")
	}
	next := queueUp(t, p, t.Context(), locking.Request{Key: "k", Job: "2"})
	if !l.HasLocalWaiters() {
		t.Fatal("the next job waits, but no waiter is reported")
	}
	server.Client().HDel(t.Context(), guard.Key, "owner", "expires")
	l.MarkReleased()
	<-l.Context().Done()
	second := soon(t, next, "the next job here").ok(t)
	if second.Fence() <= l.Fence() {
		t.Errorf("fence %d after %d", second.Fence(), l.Fence())
	}
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("Release after Returned: %v; want nothing done", err)
	}
	server.Client().HDel(t.Context(), guard.Key, "owner", "expires")
	second.MarkReleased()
	second.MarkReleased()
	release(t, must(t, start(t, server, "w2"), "k", "3"))
	if got, want := observed.all(), map[string]int{"began": 2, "acquired": 2, "released": 2}; !maps.Equal(got, want) {
		t.Errorf("observed %v; want %v", got, want)
	}
}

func TestRenewalDuringMarkReleasedLosesNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		taken bool // another request gets the lease before the renewal
		want  map[string]int
	}{
		"nobody has it":  {false, map[string]int{"began": 1, "acquired": 1, "released": 1}},
		"another has it": {true, map[string]int{"began": 1, "acquired": 1, "lost": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			observed := &tally{}
			p := start(t, server, "w1", lease(time.Hour), func(cfg *locking.Config) { cfg.Observer = observed }) // renewed by the test alone
			l := must(t, p, "k", "1")
			server.Client().HDel(t.Context(), l.Guard().Key, "owner", "expires")
			if tc.taken {
				release(t, must(t, start(t, server, "w2"), "k", "2"))
			}
			if err := locking.RenewAll(t.Context(), p.Locker); err != nil {
				t.Fatal(err)
			}
			if err := l.Confirm(t.Context()); !errors.Is(err, locking.ErrLost) {
				t.Errorf("Confirm: %v; want ErrLost", err)
			}
			l.MarkReleased()
			if got := observed.all(); !maps.Equal(got, tc.want) {
				t.Errorf("observed %v; want %v", got, tc.want)
			}
			if p.log.count("lease lost") != tc.want["lost"] {
				t.Error("the log is wrong")
			}
			release(t, must(t, p, "k", "3"))
		})
	}
}
