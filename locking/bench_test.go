package locking_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"lockstep/internal/redistest"
	"lockstep/locking"
)

// quiet opens a Locker without instrumentation, for benchmarks.
func quiet(server *redistest.Server) func(*locking.Config) {
	return func(cfg *locking.Config) { cfg.Log, cfg.Redis = nil, server.Client() }
}

func BenchmarkUncontended(b *testing.B) {
	server := redistest.Start(b)
	p := start(b, server, "w1", quiet(server))
	b.Run("lock", func(b *testing.B) {
		for b.Loop() {
			release(b, must(b, p, "k", "1"))
		}
	})
	// A minimal lock with a fence, for comparison.
	b.Run("raw", func(b *testing.B) {
		client := server.Client()
		keys := []string{"{t}:raw"}
		const lock = `if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 10000) then return redis.call('INCR', KEYS[1] .. ':fence') end return 0`
		const unlock = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`
		load := func(src string) string { return client.ScriptLoad(b.Context(), src).Val() }
		lockHash, unlockHash := load(lock), load(unlock)
		for b.Loop() {
			client.EvalSha(b.Context(), lockHash, keys, "token")
			client.EvalSha(b.Context(), unlockHash, keys, "token")
		}
	})
}

// BenchmarkHandOff measures the time from the start of a release until Acquire returns in another process'
// Locker, with 8 × 4 waiters and 2 ms of work.
func BenchmarkHandOff(b *testing.B) {
	server := redistest.Start(b)
	const lockers, waiters = 8, 4
	ctx, cancel := context.WithCancel(b.Context())
	var mu sync.Mutex
	var gaps []time.Duration
	var left time.Time
	grants := make([]int, lockers)
	enough := make(chan struct{})
	var done sync.WaitGroup
	for i := range lockers {
		p := start(b, server, fmt.Sprint("w", i), quiet(server))
		for range waiters {
			done.Go(func() {
				for ctx.Err() == nil {
					l, err := p.Acquire(ctx, locking.Request{Key: "k"})
					if err != nil {
						return
					}
					now := time.Now()
					mu.Lock()
					grants[i]++
					if !left.IsZero() {
						gaps = append(gaps, now.Sub(left))
					}
					if len(gaps) == b.N {
						close(enough)
					}
					mu.Unlock()
					time.Sleep(2 * time.Millisecond)
					mu.Lock()
					left = time.Now()
					mu.Unlock()
					_ = l.Release(ctx)
				}
			})
		}
	}
	<-enough
	b.StopTimer()
	cancel()
	done.Wait()
	slices.Sort(gaps)
	b.ReportMetric(float64(gaps[len(gaps)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(gaps[len(gaps)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(slices.Min(grants))/float64(slices.Max(grants)), "fewest/most")
}

func BenchmarkRenew10000(b *testing.B) {
	server := redistest.Start(b)
	p := start(b, server, "w1", quiet(server), lease(time.Hour))
	for i := range 10_000 {
		must(b, p, fmt.Sprint(i), "")
	}
	b.ResetTimer()
	for b.Loop() {
		if err := locking.RenewAll(b.Context(), p.Locker); err != nil {
			b.Fatal(err)
		}
	}
}
