package locking_test

import (
	"context"
	"testing"
	"time"

	"lockstep/internal/redistest"
	"lockstep/locking"
)

func TestCloseEndsWaitsAndWaitsForLeases(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, other := start(t, server, "w1", lease(200*time.Millisecond)), start(t, server, "w2")
	mine, theirs := must(t, p, "mine", "1"), must(t, other, "theirs", "2")
	behindMine := queueUp(t, p, t.Context(), locking.Request{Key: "mine", Job: "3"})
	behindTheirs := queueUp(t, p, t.Context(), locking.Request{Key: "theirs", Job: "4"})

	closed := make(chan error, 1)
	go func() { closed <- p.Close(t.Context()) }()
	wantErr(t, soon(t, behindMine, "the wait behind a lease of this process").err, locking.ErrClosed)
	wantErr(t, soon(t, behindTheirs, "the wait behind another process").err, locking.ErrClosed)
	_, err := p.Acquire(t.Context(), locking.Request{Key: "new"})
	wantErr(t, err, locking.ErrClosed)

	select {
	case err := <-closed:
		t.Fatalf("Close returned %v while a lease was out", err)
	case <-time.After(500 * time.Millisecond): // more than two leases
	}
	wantErr(t, mine.Confirm(t.Context()), nil)
	release(t, mine)
	wantErr(t, soon(t, closed, "Close"), nil)
	wantErr(t, p.Close(t.Context()), nil)
	release(t, theirs)
	if n := server.Client().Exists(t.Context(), prefix+"theirs:queue", prefix+"theirs:waiters").Val(); n != 0 {
		t.Fatal("the closed Locker is still queued")
	}
}

func TestCloseLeavesLeasesInUseToExpire(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, other := start(t, server, "w1", lease(500*time.Millisecond)), start(t, server, "w2", lease(500*time.Millisecond))
	l := must(t, p, "k", "1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantErr(t, p.Close(ctx), context.Canceled)
	wantErr(t, context.Cause(l.Context()), locking.ErrClosed)
	wantErr(t, l.Confirm(t.Context()), locking.ErrClosed)
	if owner := server.Client().HGet(t.Context(), prefix+"k", "owner").Val(); owner != l.Guard().Owner {
		t.Fatalf("Close has released the lease: owner is %q", owner)
	}
	release(t, must(t, other, "k", "2"))
}

func TestReleaseAfterClose(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p, other := start(t, server, "w1", lease(time.Hour)), start(t, server, "w2")
	l := must(t, p, "k", "1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = p.Close(ctx)
	release(t, l)
	release(t, must(t, other, "k", "2"))
}
