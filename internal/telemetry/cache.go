package telemetry

import (
	"context"
	"sync"
	"time"
)

const (
	sharedTTL   = 5 * time.Second  // of state that all processes share in Redis
	volumeTTL   = 15 * time.Second // of a volume's figures: scrapes must not load a network file system
	readTimeout = 2 * time.Second
)

// cache keeps the result of a read, so that scrapes do not cause many.
type cache[T any] struct {
	mu      sync.Mutex
	expires time.Time // of last and err
	last    T
	err     error
}

// get returns the result of a read, cached for ttl. It ignores cancellation of ctx and times out after 2 s.
func (c *cache[T]) get(ctx context.Context, ttl time.Duration, read func(context.Context) (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Before(c.expires) {
		return c.last, c.err
	}
	// Other callers may be waiting for this read, so it does not end with the caller's context.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
	defer cancel()
	c.last, c.err = read(ctx)
	c.expires = time.Now().Add(ttl)
	return c.last, c.err
}
