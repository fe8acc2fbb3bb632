package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/redisx"
)

// Run runs the lockstep command with these arguments and returns its exit code.
func Run(ctx context.Context, args []string, std term.Streams) int {
	return term.Execute(ctx, newRootCommand(std), args, std)
}

func newRootCommand(std term.Streams) *cobra.Command {
	root := term.NewRoot(std, &cobra.Command{
		Use:   "lockstep",
		Short: "Keep shared Git clones in step with their remotes",
		Long: "Lockstep turns a push into one fresh checkout on a shared volume and one event for every consumer:\n" +
			"one worker at a time per repository, all repositories in parallel, nothing lost.\n\n" +
			"Every setting is a flag, a LOCKSTEP_* variable or a key in lockstep.yaml, in that order of precedence.",
		Example: "  lockstep sync https://example.com/acme/widgets.git --root repos\n  lockstep serve --redis redis://127.0.0.1:6379 --root repos",
	})
	root.PersistentFlags().String("config", "", "settings `file` (default lockstep.yaml if it exists)")
	root.AddCommand(
		newSyncCommand(std), newServeCommand(std), newHealthcheckCommand(std), newPublishCommand(std), newExecCommand(std),
		newStatusCommand(std), newTailCommand(std), newLocksCommand(std), newHostsCommand(std), newReposCommand(std), newWatchCommand(std), newReconcileCommand(std),
		newDoctorCommand(std), newConfigCommand(std), newDeadCommand(std), newDemoCommand(std), newVersionCommand(std), newCompletionCommand(std),
		newExitCodesTopic(), newEnvironmentTopic(),
	)
	root.SetHelpCommand(newHelpCommand())
	columns, _ := term.TerminalSize(std.Stdout)
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "Flags.FlagUsages ", fmt.Sprintf("Flags.FlagUsagesWrapped %d ", columns)))
	setDefaults(root, std)
	return root
}

// newGroup returns a command that only has subcommands.
func newGroup(use, short, long string, subcommands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(subcommands...)
	return cmd
}

// withFlags adds settings and the output form to a command.
func withFlags(cmd *cobra.Command, settings config.Group, out *term.Output) *cobra.Command {
	config.AddFlags(cmd.Flags(), settings)
	out.Add(cmd)
	return cmd
}

// onRedis runs fn with a client of the configured Redis. It returns an error with advice if none is configured or if Redis does not
// answer within the timeout.
func onRedis(cmd *cobra.Command, std term.Streams, timeout time.Duration, fn func(context.Context, config.Config, redis.UniversalClient) error) error {
	cfg, err := settings(cmd, std)
	if err != nil {
		return err
	}
	if cfg.Redis == "" {
		return term.UsageError(errors.New("--redis is required; use the same URL as the service"))
	}
	server, err := cfg.RedisServer()
	if err != nil {
		return term.UsageError(err)
	}
	client := server.Open()
	defer client.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	return redisx.Explain(server, fn(ctx, cfg, client))
}
