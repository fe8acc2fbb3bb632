package redistest

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// RoundTrips counts what the clients that it is a hook of ask: commands that go together are one.
type RoundTrips struct{ atomic.Int64 }

// DialHook is part of [redis.Hook].
func (*RoundTrips) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook is part of [redis.Hook].
func (r *RoundTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.Add(1)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook is part of [redis.Hook].
func (r *RoundTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.Add(1)
		return next(ctx, cmds)
	}
}
