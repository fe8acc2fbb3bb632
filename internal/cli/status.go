package cli

import (
	"context"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/status"
)

func newStatusCommand(std term.Streams) *cobra.Command {
	var out term.Output
	var again bool
	cmd := &cobra.Command{
		Use:   "status [owner/name]",
		Short: "Show the state of the service or of one repository",
		Long: "Show the state of the service on one screen: lag and pending entries, the current work of each worker, contended\n" +
			"leases, hosts, followers, failing repositories and dead letters and, if --root is the deployment's volume, its free\n" +
			"space. The health line lists problems; the exit code is 0 anyway.\n\n" +
			"It only reads Redis, at a cost independent of the number of repositories: it searches for leases and failures for a\n" +
			"quarter of a second each, and says so if that does not cover all of them. Spooled webhooks are in the metrics of the\n" +
			"receivers only.",
		Example: "  lockstep status --redis redis://127.0.0.1:6379\n" +
			"  lockstep status --watch --redis redis://127.0.0.1:6379\n" +
			"  lockstep status acme/widgets --redis redis://127.0.0.1:6379 -o yaml",
		Args:              term.WrongUse(term.OneArgAtMost),
		ValidArgsFunction: completeFirst(std, repositories),
		RunE: func(cmd *cobra.Command, args []string) error {
			var repo events.RepoPath
			if len(args) == 1 {
				var err error
				if repo, err = events.ParseRepoPath(args[0]); err != nil {
					return term.UsageError(err)
				}
			}
			timeout := term.StatusTimeout
			if again {
				timeout = term.Forever
			}
			err := onRedis(cmd, std, timeout, func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
				service := status.Reader{Redis: client, Config: cfg}
				read := func(ctx context.Context) (term.Table, error) {
					if len(args) == 1 {
						return readRepo(ctx, client, cfg, repo)
					}
					return service.Read(ctx)
				}
				if again {
					return term.Follow(ctx, std, out, read)
				}
				status, err := read(ctx)
				if err != nil {
					return err
				}
				return out.Show(std, status, status.Table)
			})
			if again && cmd.Context().Err() != nil { // interrupted by the user
				return nil
			}
			return err
		},
	}
	config.AddFlags(cmd.Flags(), config.Common|config.Reading)
	cmd.Flags().BoolVarP(&again, "watch", "w", false, "refresh every 2 s until interrupted")
	out.Add(cmd)
	return cmd
}
