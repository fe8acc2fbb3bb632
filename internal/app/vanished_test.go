package app

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/internal/redistest"
)

// refuses is a hook that fails commands of a name as if Redis were down.
type refuses struct{ name string }

func (*refuses) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *refuses) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == r.name {
			err := &net.OpError{Op: "dial", Err: io.EOF}
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (*refuses) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestPollsForVanishedChangesAreNotLost covers what ends a round of them, or delays it.
func TestPollsForVanishedChangesAreNotLost(t *testing.T) {
	for name, tc := range map[string]struct {
		refused string // command
		waiting int    // entries in the stream
		all     bool
		queued  int64 // polls
	}{
		"nothing":                     {queued: 2},
		"no reply to the publication": {refused: "xadd"},
		"nor to the first command":    {refused: "xlen"},
		"nor to the list of all":      {refused: "zrangebylex", all: true},
		"a full stream":               {waiting: 3},
		"one that is half full":       {waiting: 2, queued: 2},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, server := t.Context(), redistest.Start(t)
			cfg := Config{Log: slog.New(slog.DiscardHandler)}
			plain, changes := server.Client(), cfg.Namespace().Changes()
			client, hook := server.Client(), &refuses{tc.refused}
			client.AddHook(hook)
			for range tc.waiting {
				plain.XAdd(ctx, &redis.XAddArgs{Stream: changes, Values: []string{"a", "b"}})
			}
			v := newVanished(cfg, client)
			v.most = 2
			keys := []string{"example.com/acme/a", "example.com/acme/b"}
			v.add(tc.all, keys...)
			<-v.wake
			v.round(ctx)
			if n := plain.XLen(ctx, changes).Val() - int64(tc.waiting); n != tc.queued {
				t.Fatalf("%d polls, want %d", n, tc.queued)
			}
			if again := len(v.wake) == 1 && len(v.keys) == 2 && v.all == tc.all; again != (tc.queued == 0) {
				t.Errorf("is repeated: %v (all %v, keys %v)", again, v.all, v.keys)
			}
			if tc.queued > 0 || tc.all {
				return
			}
			hook.name, v.most = "", 10
			v.round(ctx)
			if n := plain.XLen(ctx, changes).Val() - int64(tc.waiting); n != 2 || len(v.keys) > 0 {
				t.Errorf("%d polls in the next round, want 2; keys %v", n, v.keys)
			}
		})
	}
}
