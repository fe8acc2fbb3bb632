package cache_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/internal/cache"
)

func TestResultIsReused(t *testing.T) {
	const took = 100 * time.Millisecond
	for name, tc := range map[string]struct {
		ttl, kept, keptError time.Duration
	}{
		"for a time":                       {time.Second, time.Second, time.Second},
		"by how long it took to read that": {0, 20 * took, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, reads, failed := &cache.Cache[string]{TTL: tc.ttl, Timeout: time.Minute}, 0, error(nil)
				expect := func(want int) {
					t.Helper()
					got, err := c.Get(t.Context(), func(ctx context.Context) (string, error) {
						time.Sleep(took)
						reads++
						return "result", errors.Join(ctx.Err(), failed)
					})
					if got != "result" || !errors.Is(err, failed) || reads != want {
						t.Errorf("%q, %v, read %d times, want %d", got, err, reads, want)
					}
				}
				expect(1)
				time.Sleep(tc.kept - time.Millisecond)
				expect(1)
				time.Sleep(time.Millisecond)
				expect(2)
				time.Sleep(time.Millisecond)
				c.Forget()
				time.Sleep(time.Millisecond)
				expect(3)
				failed = errors.New("redis is away")
				c.Forget()
				time.Sleep(time.Millisecond)
				expect(4)
				time.Sleep(tc.keptError)
				expect(5)
			})
		})
	}
}

// TestOneReadIsShared has callers wait for a read: one leaves, the others get its error, and nothing of it is kept.
func TestOneReadIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, reads, errAway := &cache.Cache[int]{Timeout: time.Minute}, 0, errors.New("redis is away")
		read := func(context.Context) (int, error) {
			reads++
			time.Sleep(10 * time.Second)
			return 0, errAway
		}
		leaving, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		var callers sync.WaitGroup
		for range 3 {
			callers.Go(func() {
				if _, err := c.Get(t.Context(), read); !errors.Is(err, errAway) {
					t.Errorf("a caller got %v", err)
				}
			})
		}
		if _, err := c.Get(leaving, read); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		c.Forget() // does not wait
		callers.Wait()
		if took := time.Since(began); reads != 1 || took != 10*time.Second {
			t.Errorf("%d reads, %v", reads, took)
		}
	})
}
