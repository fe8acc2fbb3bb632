package stream

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// onceClient sends scripts once, whatever retries the client is configured for. After a lost reply only the
// caller knows whether repeating a script is safe, and what the reply of the repetition means. A script has tryTimeout,
// and is not cancelled with ctx: its reply would be lost.
type onceClient struct{ redis.UniversalClient }

func (c onceClient) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return c.eval(ctx, "eval", script, keys, args)
}

func (c onceClient) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return c.eval(ctx, "evalsha", sha, keys, args)
}

func (c onceClient) eval(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	all := append(make([]any, 0, 3+len(keys)+len(args)), name, script, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tryTimeout)
	defer cancel()
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	if len(keys) > 0 {
		cmd.SetFirstKeyPos(3)
	}
	_ = c.Process(ctx, once{cmd}) // the command has the error
	return cmd
}

// once is a command that the client sends once.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

var timeScript = redis.NewScript("return redis.call('TIME')")

// Time returns the time by the clock of the Redis server that has a key. On a Redis Cluster the command TIME
// goes to the masters in turn, also to one that does not answer.
func Time(ctx context.Context, client redis.Scripter, key string) (time.Time, error) {
	now, err := timeOf(timeScript.Run(ctx, client, []string{key}))
	if err != nil {
		return time.Time{}, fmt.Errorf("read the clock of Redis: %w", err)
	}
	return now, nil
}

// timeOf returns the time that [timeScript] has replied.
func timeOf(cmd *redis.Cmd) (time.Time, error) {
	reply, err := cmd.StringSlice()
	if err != nil {
		return time.Time{}, err
	}
	var parts [2]int64 // seconds, microseconds
	for i := range parts {
		if len(reply) != len(parts) {
			return time.Time{}, fmt.Errorf("unexpected reply of TIME: %q", reply)
		}
		if parts[i], err = strconv.ParseInt(reply[i], 10, 64); err != nil {
			return time.Time{}, err
		}
	}
	return time.Unix(parts[0], parts[1]*1000), nil
}

// clock estimates Redis' clock from its latest reply. The estimate is behind by at most the time that the reply took.
type clock struct{ ahead atomic.Pointer[time.Duration] } // of the local clock; nil until the first reply

// set records a time, in ms, that a reply just received contains.
func (c *clock) set(ms int64) {
	ahead := time.Until(time.UnixMilli(ms))
	c.ahead.Store(&ahead)
}

// now returns the current time by Redis' clock, or by the local one before the first reply.
func (c *clock) now() time.Time {
	if ahead := c.ahead.Load(); ahead != nil {
		return time.Now().Add(*ahead)
	}
	return time.Now()
}

// deadline returns the time after d, in ms of Redis' clock, or 0 before the first reply.
func (c *clock) deadline(d time.Duration) int64 {
	if c.ahead.Load() == nil {
		return 0
	}
	return c.now().Add(d).UnixMilli()
}
