package locking_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/redistest"
	"lockstep/locking"
)

// Redis is stopped for longer than the lease, with a holder and a waiter, and restarts with its data.
func TestSlowRedisRestart(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		late func(a, b process) (p process, hash string) // the process and script whose calls are delayed
		kept bool
	}{
		"holder first": {func(_, b process) (process, string) { return b, locking.AcquireHash }, true},
		"waiter first": {func(a, _ process) (process, string) { return a, locking.RenewHash }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			a, b := start(t, server, "a", lease(time.Second)), start(t, server, "b", lease(time.Second))
			awaitSubscription(t, b, a)
			l := must(t, a, "k", "1")
			wait := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "2"})
			doubts, again := a.log.count("lease in doubt"), a.log.count("lease held again") // if Redis was slow before
			server.Stop()
			a.log.await(t, "lease in doubt", doubts+1)
			late, hash := tc.late(a, b)
			there, let := late.calls.hold(hash)
			defer let()
			soon(t, there, "the delayed call")
			server.Restart()

			if tc.kept {
				a.log.await(t, "lease held again", again+1)
				let()
				polls := b.calls.count(locking.AcquireHash)
				until(t, "the waiter has polled", func() bool { return b.calls.count(locking.AcquireHash) > polls })
				wantErr(t, l.Confirm(t.Context()), nil)
				if len(wait) > 0 {
					t.Fatal("the waiter was granted a lease that is held again")
				}
				if got := server.Client().HGet(t.Context(), prefix+"k", "fence").Val(); got != fence(l) {
					t.Fatalf("held again with fence %s; want %s", got, fence(l))
				}
				release(t, l)
			}
			next := soon(t, wait, "the waiter").ok(t)
			if next.Fence() <= l.Fence() {
				t.Fatalf("fence %d follows %d", next.Fence(), l.Fence())
			}
			if !tc.kept {
				let()
				soon(t, l.Context().Done(), "the loss")
				wantErr(t, context.Cause(l.Context()), locking.ErrLost)
				wantErr(t, l.Release(t.Context()), locking.ErrLost)
			}
			wantErr(t, next.Confirm(t.Context()), nil)
			release(t, next)
			assertFree(t, a, "k")
		})
	}
}

// Redis answers, but only with an error, for longer than the lease.
func TestBusyRedisCountsAsUnavailable(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reply string
		args  []string
		begin func(t *testing.T, server *redistest.Server) (end func())
	}{
		"loading its data": {
			reply: "LOADING ",
			args:  []string{"--appendonly", "yes", "--enable-debug-command", "yes", "--key-load-delay", "100"},
			begin: func(t *testing.T, server *redistest.Server) func() {
				pipe := server.Client().Pipeline()
				for i := range 60_000 { // 6 s, unless the delay ends
					pipe.Set(t.Context(), fmt.Sprint("ballast", i), "", 0)
				}
				if _, err := pipe.Exec(t.Context()); err != nil {
					t.Fatal(err)
				}
				server.Stop()
				up := make(chan struct{})
				go func() { defer close(up); server.Restart() }()
				return func() {
					config(t, server, "key-load-delay", "0")
					soon(t, up, "a Redis that has loaded its data")
				}
			},
		},
		"running a script": {
			reply: "BUSY ",
			args:  []string{"--lua-time-limit", "20"},
			begin: func(t *testing.T, server *redistest.Server) func() {
				client := server.Client()
				killed := make(chan error, 1)
				go func() { killed <- client.Eval(context.Background(), "while true do end", nil).Err() }()
				return func() {
					if err := server.Client().ScriptKill(context.Background()).Err(); err != nil {
						t.Error(err)
					}
					<-killed
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.StartReal(t, tc.args...)
			a, b := start(t, server, "a", lease(500*time.Millisecond)), start(t, server, "b", lease(500*time.Millisecond))
			l := must(t, a, "k", "1")
			wait := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "2"})
			doubts := a.log.count("lease in doubt")
			end := tc.begin(t, server)
			probe := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1, PoolSize: 1})
			defer probe.Close()
			until(t, "Redis says "+tc.reply, func() bool {
				err := probe.Get(t.Context(), "x").Err()
				return err != nil && strings.HasPrefix(err.Error(), tc.reply)
			})
			until(t, "the error contains the reason", func() bool { // on a busy machine, no reply may come within the wait
				_, err := b.Acquire(t.Context(), locking.Request{Key: "other", Wait: 700 * time.Millisecond})
				wantErr(t, err, locking.ErrUnavailable)
				return strings.Contains(err.Error(), tc.reply)
			})
			a.log.await(t, "lease in doubt", doubts+1)
			wantErr(t, l.Context().Err(), nil)
			end()

			if err := l.Confirm(t.Context()); err == nil {
				if len(wait) > 0 {
					t.Fatal("both have the lease")
				}
				release(t, l)
			} else if wantErr(t, err, locking.ErrLost); !errors.Is(context.Cause(l.Context()), locking.ErrLost) {
				t.Fatalf("the lost lease's context ended with %v", context.Cause(l.Context()))
			} else {
				wantErr(t, l.Release(t.Context()), locking.ErrLost)
			}
			next := soon(t, wait, "the waiter").ok(t)
			if next.Fence() <= l.Fence() {
				t.Fatalf("fence %d follows %d", next.Fence(), l.Fence())
			}
			release(t, next)
			assertFree(t, a, "k")
		})
	}
}
