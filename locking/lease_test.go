package locking_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"testing"
	"time"

	"lockstep/internal/redistest"
	"lockstep/locking"
)

// steal gives the lease of key to a stranger for an hour, as after a pause of its holder.
func steal(t testing.TB, server *redistest.Server, key string) {
	t.Helper()
	client := server.Client()
	fence := client.HIncrBy(t.Context(), prefix+key, "fence", 1)
	set := client.HSet(t.Context(), prefix+key, "owner", "stranger", "job", "99",
		"expires", time.Now().Add(time.Hour).UnixMicro())
	if err := errors.Join(fence.Err(), set.Err()); err != nil {
		t.Fatal(err)
	}
}

func TestLostLeaseCancelsItsContext(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	observed := &tally{}
	p := start(t, server, "w1", lease(200*time.Millisecond), func(cfg *locking.Config) { cfg.Observer = observed })
	type value struct{}
	l, err := p.Acquire(context.WithValue(t.Context(), value{}, "kept"), locking.Request{Key: "k", Job: "1"})
	if err != nil {
		t.Fatal(err)
	}
	steal(t, server, "k")
	soon(t, l.Context().Done(), "the loss")
	wantErr(t, context.Cause(l.Context()), locking.ErrLost)
	wantErr(t, l.Confirm(t.Context()), locking.ErrLost)
	if l.Context().Value(value{}) != "kept" {
		t.Fatal("the lease's context has lost the values of Acquire's")
	}
	p.log.await(t, "lease lost", 1)
	if lost := p.log.all("lease lost")[0]; lost.level != slog.LevelError || lost.attrs["job"] != "1" || lost.attrs["key"] != "k" {
		t.Fatalf("the loss was logged as %v", lost)
	}
	wantErr(t, l.Release(t.Context()), locking.ErrLost)
	if owner := server.Client().HGet(t.Context(), prefix+"k", "owner").Val(); owner != "stranger" {
		t.Fatalf("the release took the lease from its new holder: owner is %q", owner)
	}
	got := observed.all()
	delete(got, "in doubt") // Redis may be slow for so short a lease
	if want := map[string]int{"began": 1, "acquired": 1, "lost": 1}; !maps.Equal(got, want) {
		t.Fatalf("observed %v; want %v", got, want)
	}
}

func TestNextRequestStartsAfterALostLeaseIsReleased(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := start(t, server, "w1", lease(200*time.Millisecond))
	l := must(t, p, "k", "1")
	next := queueUp(t, p, t.Context(), locking.Request{Key: "k", Job: "2"})
	steal(t, server, "k")
	soon(t, l.Context().Done(), "the loss")
	server.Client().HSet(t.Context(), prefix+"k", "owner", "", "expires", 0)
	other := start(t, server, "w2")
	release(t, must(t, other, "k", "3")) // other processes can get the key
	if len(next) != 0 {
		t.Fatal("a second job began while the first, which had lost its lease, still ran")
	}
	wantErr(t, l.Release(t.Context()), locking.ErrLost)
	release(t, soon(t, next, "the next job").ok(t))
}

func TestLeaseInDoubtIsNotLost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	observed := &tally{}
	p := start(t, server, "w1", lease(time.Second), func(cfg *locking.Config) { cfg.Observer = observed })
	l := must(t, p, "k", "1")
	doubts := p.log.count("lease in doubt") // if Redis was slow before
	server.Stop()
	p.log.await(t, "lease in doubt", doubts+1)
	if doubt := p.log.all("lease in doubt")[0]; doubt.level != slog.LevelWarn || doubt.attrs["job"] != "1" {
		t.Fatalf("the doubt was logged as %v", doubt)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	wantErr(t, l.Confirm(ctx), context.DeadlineExceeded)
	confirmed := make(chan error, 1)
	go func() { confirmed <- l.Confirm(t.Context()) }()
	select {
	case err := <-confirmed:
		t.Fatalf("a lease in doubt was confirmed: %v", err)
	case <-l.Context().Done():
		t.Fatal("a lease in doubt was treated as lost")
	case <-time.After(300 * time.Millisecond):
	}
	server.Restart()
	wantErr(t, soon(t, confirmed, "the confirmation"), nil)
	if err := l.Context().Err(); err != nil {
		t.Fatalf("the lease is held again, but its context says %v", err)
	}
	if got := server.Client().HGet(t.Context(), prefix+"k", "fence").Val(); got != fence(l) {
		t.Fatalf("held again with fence %s; want %s", got, fence(l))
	}
	release(t, l)
	got := observed.all()
	if got["in doubt"] > doubts {
		got["in doubt"] = 1
	}
	if want := map[string]int{"began": 1, "acquired": 1, "in doubt": 1, "released": 1}; !maps.Equal(got, want) {
		t.Fatalf("observed %v; want %v", got, want)
	}
}

func TestConfirmSucceedsWithoutRedisBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := must(t, start(t, server, "w1", lease(time.Minute)), "k", "1")
	server.Stop()
	wantErr(t, l.Confirm(t.Context()), nil)
}

func TestRedisComesBackEmpty(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		meanwhile func(t *testing.T, other process)
		want      error
	}{
		"holder first":        {func(*testing.T, process) {}, nil},
		"another holds it":    {func(t *testing.T, p process) { must(t, p, "k", "2") }, locking.ErrLost},
		"another has held it": {func(t *testing.T, p process) { release(t, must(t, p, "k", "2")) }, locking.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			p, other := start(t, server, "w1", lease(time.Hour)), start(t, server, "w2")
			l := must(t, p, "k", "1")
			before := server.Client().HGetAll(t.Context(), prefix+"k").Val()
			server.Stop()
			server.Restart()
			server.Client().FlushAll(t.Context()) // the embedded Redis has kept its data
			tc.meanwhile(t, other)
			wantErr(t, l.Confirm(t.Context()), tc.want)
			if tc.want != nil {
				return
			}
			after := server.Client().HGetAll(t.Context(), prefix+"k").Val()
			delete(before, "expires")
			delete(after, "expires")
			if !maps.Equal(before, after) {
				t.Fatalf("taken back as %v; was %v", after, before)
			}
			release(t, l)
		})
	}
}

func TestReleaseWithoutRedisIsHarmless(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := start(t, server, "w1")
	l := must(t, p, "k", "1")
	next := queueUp(t, p, t.Context(), locking.Request{Key: "k", Job: "2"})
	server.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Release(ctx); err == nil || errors.Is(err, locking.ErrLost) {
		t.Fatalf("the release says %v; want that Redis is away", err)
	}
	server.Restart()
	release(t, soon(t, next, "the next job").ok(t))
}

func TestRenewalsAreBatched(t *testing.T) {
	t.Parallel()
	p := start(t, redistest.Start(t), "w1", lease(800*time.Millisecond))
	const n = 100
	var leases []*locking.Lease
	for i := range n {
		leases = append(leases, must(t, p, string(rune('A'+i)), ""))
	}
	before := p.calls.count(locking.RenewHash)
	keys := 0
	until(t, "each is renewed three times", func() bool {
		p.calls.mu.Lock()
		defer p.calls.mu.Unlock()
		keys = p.calls.keys
		return keys >= 3*n
	})
	if calls := p.calls.count(locking.RenewHash) - before; calls > 12 {
		t.Fatalf("%d leases were renewed %d times in %d calls", n, keys, calls)
	}
	for _, l := range leases {
		wantErr(t, l.Context().Err(), nil)
		release(t, l)
	}
}

func TestRedisClockGoingBackDoesNotBlockForLong(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	far := time.Now().Add(time.Hour).UnixMicro()
	client.HSet(t.Context(), prefix+"k", "owner", "dead", "expires", far, "fence", far-10_000_000, "job", "1")
	p := start(t, server, "w1", lease(100*time.Millisecond))
	l := must(t, p, "k", "2") // without waiting for an hour
	if l.Fence() != uint64(far-10_000_000+1) {
		t.Fatalf("fence %d does not follow %d", l.Fence(), far-10_000_000)
	}
}

func TestDoPassesTheLeaseToItsFunction(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := start(t, server, "w1")
	own := errors.New("own")
	var seen *locking.Lease
	err := p.Do(t.Context(), locking.Request{Key: "k"}, func(ctx context.Context, l *locking.Lease) error {
		if ctx != l.Context() {
			t.Error("the context is not the lease's")
		}
		seen = l
		return own
	})
	if err != own {
		t.Fatalf("got %v; want the function's own error", err)
	}
	wantErr(t, seen.Confirm(t.Context()), locking.ErrLost)
	err = p.Do(t.Context(), locking.Request{Key: "k"}, func(ctx context.Context, l *locking.Lease) error {
		steal(t, server, "k")
		_ = l.Confirm(ctx)
		<-ctx.Done()
		return ctx.Err()
	})
	wantErr(t, err, locking.ErrLost)
	wantErr(t, err, context.Canceled)
	func() {
		defer func() { _ = recover() }()
		_ = p.Do(t.Context(), locking.Request{Key: "other"}, func(context.Context, *locking.Lease) error { panic("on purpose") })
	}()
	release(t, must(t, p, "other", "after a panic"))
}
