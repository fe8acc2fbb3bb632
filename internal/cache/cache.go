// Package cache reuses the result of a read, so that many callers cause few.
package cache

import (
	"context"
	"sync"
	"time"
)

// pause is how many times as long as a read took its result is kept, unless there is a TTL: reads take less than a
// twentieth of the time of what is read.
const pause = 20

// Cache reuses the result of a read. Only one caller reads at a time. It is safe for concurrent use.
type Cache[T any] struct {
	// how long a result, or an error, is kept; 0 keeps no errors, and results twenty times as long as the read took
	TTL     time.Duration
	Timeout time.Duration // of a read

	mu      sync.Mutex
	expires time.Time // of last and err
	last    T
	err     error
}

// Get returns a result of read. It ignores cancellation of ctx, as other callers may be waiting for the same read.
func (c *Cache[T]) Get(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	start := time.Now()
	if start.Before(c.expires) {
		return c.last, c.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Timeout)
	defer cancel()
	c.last, c.err = read(ctx)
	keep := c.TTL
	if keep == 0 && c.err == nil {
		keep = pause * time.Since(start)
	}
	c.expires = time.Now().Add(keep)
	return c.last, c.err
}

// Forget drops the result, after what has changed it.
func (c *Cache[T]) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expires = time.Time{}
}
