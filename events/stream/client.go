package stream

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// onceClient sends scripts once, whatever retries the client is configured for. After a lost reply only the
// caller knows whether repeating a script is safe, and what the reply of the repetition means.
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
