package hot

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
)

// newCaseCommands returns the commands of what else could cost all other work: hosts that hang or limit, a Redis that hangs, and
// huge entries. Each measures the other work first without the obstacle and then with it, on a private redis-server. Hosts are
// addresses of 127.0.0.0/8. A missed target is marked in the table.
func newCaseCommands(std term.Streams) []*cobra.Command {
	return []*cobra.Command{newHungCommand(std), newLimitedCommand(std), newRedisHangCommand(std), newHugeCommand(std)}
}

// newCase completes the command of a case: it checks the flags, starts a private redis-server with args, and calls run.
func newCase(
	std term.Streams, cmd *cobra.Command, check func() error,
	run func(context.Context, *rig.Env, *rig.Redis) (rig.Report, error), args ...string,
) *cobra.Command {
	return rig.Command(std, cmd, func(func(string) bool) error { return check() }, func(ctx context.Context, env *rig.Env) (rig.Report, error) {
		server, err := env.OpenPrivateRedis(ctx, args...)
		if err != nil {
			return nil, err
		}
		return run(ctx, env, server)
	})
}

// atLeastOne returns an error unless all numbers are positive.
func atLeastOne(flags string, numbers ...int64) error {
	for _, n := range numbers {
		if n < 1 {
			return fmt.Errorf("%s: want a positive value for each", flags)
		}
	}
	return nil
}
