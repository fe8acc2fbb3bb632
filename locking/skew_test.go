package locking_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/redistest"
	"lockstep/locking"
)

// skewed is a Redis whose clock is some seconds off, which has the same effect as a wrong clock of the workers.
// It records arguments that are close to the worker's clock, in any unit.
type skewed struct {
	redis.UniversalClient
	by   int64
	mu   sync.Mutex
	sent []string
}

type noScript struct{}

func (noScript) Error() string { return "NOSCRIPT the skew needs the source" }
func (noScript) RedisError()   {}

func (s *skewed) EvalSha(ctx context.Context, _ string, _ []string, args ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(noScript{})
	return cmd
}

func (s *skewed) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	const reading = "tonumber(time[1])"
	if strings.Count(script, reading) != 1 {
		panic("the scripts read Redis' clock in another way than this test knows")
	}
	s.note(args)
	return s.UniversalClient.Eval(ctx, strings.Replace(script, reading, fmt.Sprintf("(%s + %d)", reading, s.by), 1), keys, args...)
}

func (s *skewed) note(args []any) {
	for _, arg := range args {
		n, err := strconv.ParseFloat(fmt.Sprint(arg), 64)
		for unit := time.Second; err == nil && unit > 0; unit /= 1000 {
			off := n/float64(time.Second/unit) - float64(time.Now().Unix())
			if -600 < off && off < 600 {
				s.mu.Lock()
				s.sent = append(s.sent, fmt.Sprint(arg))
				s.mu.Unlock()
			}
		}
	}
}

func TestWrongWorkerClockIsHarmless(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]int64{"an hour behind Redis'": 3600, "an hour ahead of Redis'": -3600} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			var clocks []*skewed
			skew := func(cfg *locking.Config) {
				client := cfg.Redis.(*tap)
				clock := &skewed{UniversalClient: client.UniversalClient, by: by}
				clocks = append(clocks, clock)
				client.UniversalClient = clock
			}
			const term = time.Second
			a, b := start(t, server, "a", skew, lease(term)), start(t, server, "b", skew, lease(term))
			awaitSubscription(t, b, a)

			l := must(t, a, "k", "1")
			theirs := time.Now().Add(time.Duration(by) * time.Second)
			if off := time.UnixMicro(micros(t, server.Client().HGet(t.Context(), prefix+"k", "since").Val())).Sub(theirs).Abs(); off > time.Minute {
				t.Fatalf("the lease's beginning is %v off Redis' clock: the skew does not work", off)
			}
			timesOut(t, b, locking.Request{Key: "k", Wait: 2 * term}) // the lease is renewed during the wait
			wantErr(t, l.Confirm(t.Context()), nil)

			byMessage := false
			for range 5 { // a poll may coincide with a hand-over
				wait := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "2"})
				polls := b.calls.count(locking.AcquireHash)
				release(t, l)
				next := soon(t, wait, "the hand-over").ok(t)
				if next.Fence() <= l.Fence() {
					t.Fatalf("fence %d follows %d", next.Fence(), l.Fence())
				}
				byMessage = byMessage || b.calls.count(locking.AcquireHash) == polls
				wantErr(t, next.Confirm(t.Context()), nil)
				release(t, next)
				l = must(t, a, "k", "1")
			}
			if !byMessage {
				t.Error("each waiter polled; want the message to be enough")
			}

			doubts := a.log.count("lease in doubt") // if Redis was slow before
			begun := time.Now()                     // the lease is in doubt at the right time, then held again
			wantErr(t, locking.RenewAll(t.Context(), a.Locker), nil)
			server.Stop()
			a.log.await(t, "lease in doubt", doubts+1)
			if took := time.Since(begun); took < term/2 {
				t.Errorf("a lease of %v is in doubt after %v", term, took)
			}
			server.Restart()
			wantErr(t, l.Confirm(t.Context()), nil)

			wait := queueUp(t, b, t.Context(), locking.Request{Key: "k", Job: "3"})
			stopped := make(chan struct{})
			a.calls.mu.Lock()
			a.calls.before = func(string, []string) { <-stopped } // the holder stops sending commands
			a.calls.mu.Unlock()
			heir := soon(t, wait, "the heir").ok(t) // much sooner than in an hour
			if heir.Fence() <= l.Fence() {
				t.Fatalf("fence %d follows %d", heir.Fence(), l.Fence())
			}
			close(stopped)
			soon(t, l.Context().Done(), "the loss")
			wantErr(t, context.Cause(l.Context()), locking.ErrLost)
			release(t, heir)

			for _, clock := range clocks {
				clock.mu.Lock()
				if len(clock.sent) > 0 {
					t.Errorf("a worker has told Redis its own time: %v", clock.sent)
				}
				clock.mu.Unlock()
			}
		})
	}
}
