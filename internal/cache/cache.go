// Package cache reuses the result of a read, so that many callers cause few, and keeps values that were used last.
package cache

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// pause is how many times as long as a read took its result is kept, unless there is a TTL: reads take less than a
// twentieth of the time of what is read.
const pause = 20

// Cache reuses the result of a read. There is only one read at a time, whose result, or error, all get that wait for it.
// It is safe for concurrent use.
type Cache[T any] struct {
	// how long a result, or an error, is kept; 0 keeps no errors, and results twenty times as long as the read took
	TTL     time.Duration
	Timeout time.Duration // of a read

	flight singleflight.Group

	mu      sync.Mutex
	changed time.Time // by the last Forget
	expires time.Time // of last and err
	last    T
	err     error
}

// Get returns a result of read. If ctx ends, Get does, but not the read, for which other callers may be waiting.
func (c *Cache[T]) Get(ctx context.Context, read func(context.Context) (T, error)) (last T, err error) {
	c.mu.Lock()
	if time.Now().Before(c.expires) {
		defer c.mu.Unlock()
		return c.last, c.err
	}
	c.mu.Unlock()
	done := c.flight.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Timeout)
		defer cancel()
		began := time.Now()
		last, err := c.read(ctx, read)
		c.keep(began, last, err)
		return last, err
	})
	select {
	case result := <-done:
		last, _ = result.Val.(T)
		return last, result.Err
	case <-ctx.Done():
		return last, context.Cause(ctx)
	}
}

// read turns a panic into an error: nobody could recover from it in the goroutine of the read.
func (*Cache[T]) read(ctx context.Context, read func(context.Context) (T, error)) (last T, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	return read(ctx)
}

// keep keeps the result of a read, unless Forget was called since the read began.
func (c *Cache[T]) keep(began time.Time, last T, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keep := c.TTL
	if keep == 0 && err == nil {
		keep = pause * time.Since(began)
	}
	if began.After(c.changed) {
		c.last, c.err, c.expires = last, err, time.Now().Add(keep)
	}
}

// Forget drops the result, after what has changed it. It does not wait for a read.
func (c *Cache[T]) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flight.Forget("")
	c.changed, c.expires = time.Now(), time.Time{}
}
