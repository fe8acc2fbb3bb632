// Package starve measures what work that cannot go on costs the work that could: hosts that hang or limit, hot
// repositories, a Redis that hangs, and huge or parked entries.
package starve

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
)

// NewCommand returns the command bench starve.
func NewCommand(std term.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "starve",
		Short: "Measure what work that cannot go on costs the work that could",
		Long: "Each case brings about one kind of obstacle and measures what it costs everything else, first without the\n" +
			"obstacle and then with it, in one run. All cases start a private redis-server; those with repositories\n" +
			"also need git, and use several addresses of 127.0.0.0/8 as hosts. A missed target is marked in the table.",
		Example: "  bin/bench starve hung\n  bin/bench starve hotrefs --hot 1 -o json",
		Args:    term.WrongUse(term.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newHungCommand(std), newHotRefsCommand(std), newRedisHangCommand(std),
		newHugeCommand(std), newLimitedCommand(std))
	return cmd
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
