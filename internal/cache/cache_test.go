package cache_test

import (
	"context"
	"errors"
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
				cancelled, cancel := context.WithCancel(t.Context())
				cancel()
				expect := func(want int) {
					t.Helper()
					got, err := c.Get(cancelled, func(ctx context.Context) (string, error) {
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
				c.Forget()
				expect(3)
				failed = errors.New("redis is away")
				c.Forget()
				expect(4)
				time.Sleep(tc.keptError)
				expect(5)
			})
		})
	}
}
