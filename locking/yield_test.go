package locking_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/internal/redistest"
	"lockstep/locking"
)

func yielding(key string) locking.Request {
	return locking.Request{Key: key, Job: "optional", IfHeld: locking.Yield}
}

// A request waits for a holder that yields, even with Skip. The holder is notified, also in another process.
func TestHolderThatYieldsIsToldOfWaiters(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]locking.Policy{"wait": locking.WaitInLine, "skip": locking.Skip} {
		for where, apart := range map[string]bool{"same process": false, "another process": true} {
			t.Run(name+", "+where, func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				a, helper := start(t, server, "a"), start(t, server, "helper")
				awaitSubscription(t, a, helper)
				b := a
				if apart {
					b = start(t, server, "b")
				}
				held, err := a.Acquire(t.Context(), yielding("k"))
				if err != nil {
					t.Fatal(err)
				}
				select {
				case <-held.Wanted():
					t.Error("wanted, although nobody waits")
				default:
				}
				done := make(chan result, 1)
				go func() {
					lease, err := b.Acquire(t.Context(), locking.Request{Key: "k", Job: "1", IfHeld: policy})
					done <- result{lease, err}
				}()
				soon(t, held.Wanted(), "the wish of another request")
				release(t, held)
				next := soon(t, done, "the lease").ok(t)
				if next.Fence() <= held.Fence() {
					t.Errorf("fence %d after %d", next.Fence(), held.Fence())
				}
				_, err = b.Acquire(t.Context(), locking.Request{Key: "k", Job: "2", IfHeld: locking.Skip})
				wantErr(t, err, locking.ErrHeld) // this holder does not yield
				release(t, next)
			})
		}
	}
}

// A request that yields waits for nobody.
func TestRequestThatYieldsIsRefusedIfHeld(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := start(t, server, "a"), start(t, server, "b")
	held := must(t, a, "k", "1")
	for _, p := range []process{a, b} {
		_, err := p.Acquire(t.Context(), yielding("k"))
		wantErr(t, err, locking.ErrHeld)
	}
	release(t, held)
	held, err := a.Acquire(t.Context(), yielding("k"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []process{a, b} {
		_, err := p.Acquire(t.Context(), yielding("k"))
		wantErr(t, err, locking.ErrHeld)
	}
	select {
	case <-held.Wanted():
		t.Error("wanted by requests that yield")
	default:
	}
	release(t, held)
}

// A request that yields leaves after Redis has granted its ticket, which another request then uses.
func TestTicketOfARequestThatYieldsIsUsedByAnother(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := start(t, server, "a"), start(t, server, "b")
	release(t, must(t, a, "k", "")) // loads the scripts
	a.calls.loseReply(locking.AcquireHash, 1)
	var calls atomic.Int32
	granted, answer := make(chan struct{}), make(chan struct{})
	a.calls.mu.Lock()
	a.calls.after = func(string) {
		if calls.Add(1) == 2 {
			close(granted)
			<-answer
		}
	}
	a.calls.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	optional, next := make(chan error, 1), make(chan result, 1)
	go func() {
		_, err := a.Acquire(ctx, yielding("k"))
		optional <- err
	}()
	soon(t, granted, "the grant")
	go func() {
		lease, err := a.Acquire(t.Context(), locking.Request{Key: "k", Job: "1"})
		next <- result{lease, err}
	}()
	cancel()
	wantErr(t, soon(t, optional, "the cancelled request"), context.Canceled)
	until(t, "job 1 waits", func() bool {
		req := yielding("k")
		req.Wait = time.Millisecond
		_, err := a.Acquire(t.Context(), req)
		return errors.Is(err, locking.ErrHeld)
	})
	close(answer)
	held := soon(t, next, "the lease").ok(t)
	_, err := b.Acquire(t.Context(), locking.Request{Key: "k", Job: "2", IfHeld: locking.Skip, Wait: time.Second})
	wantErr(t, err, locking.ErrHeld)
	release(t, held)
}

// A request that yields joins a queue whose last waiter is being withdrawn, and times out because Redis hangs.
func TestOptionalWorkDoesNotLogErrorsWhileRedisHangs(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		req  locking.Request
		want slog.Level
	}{
		"yields":   {yielding("k"), slog.LevelDebug},
		"does not": {locking.Request{Key: "k", Job: "2"}, slog.LevelError},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			a, b := start(t, server, "a"), start(t, server, "b")
			must(t, b, "k", "holder")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			before := queueUp(t, a, ctx, locking.Request{Key: "k", Job: "1"})
			answers := make(chan struct{})
			defer close(answers)
			a.calls.mu.Lock()
			a.calls.before = func(string, []string) { <-answers }
			a.calls.mu.Unlock()
			cancel()
			<-before
			tc.req.Wait = 200 * time.Millisecond
			_, err := a.Acquire(t.Context(), tc.req)
			wantErr(t, err, locking.ErrTimeout)
			if logged := a.log.all("lock timeout"); len(logged) != 1 || logged[0].level != tc.want {
				t.Errorf("logged %v; want level %v", logged, tc.want)
			}
		})
	}
}

func TestOptionalWorkDoesNotWarnThatRedisIsAway(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, req := range []locking.Request{yielding("k1"), {Key: "k2", Job: "1"}} {
		a := start(t, server, "a")
		a.calls.spoil = func(string) bool { return true }
		req.Wait = 300 * time.Millisecond
		warnings := func() int {
			_, err := a.Acquire(t.Context(), req)
			wantErr(t, err, locking.ErrUnavailable)
			return a.log.count("cannot request lock, will retry")
		}
		if n := warnings(); req.IfHeld == locking.Yield && n > 0 {
			t.Errorf("%d warnings of a request that yields", n)
		} else if req.IfHeld != locking.Yield {
			until(t, "a warning", func() bool { return warnings() > 0 }) // Redis may be too slow for so short a wait
		}
	}
}
