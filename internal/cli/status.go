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
		Short: "Show the state of a running service, or of one repository",
		Long: "Show on one screen how a service does: what waits and for how long, what workers work on now, which leases\n" +
			"others wait for, which repositories fail, what was given up. Where --root is the volume of the deployment, its\n" +
			"free space too. What is wrong is in the line called health; the exit code is 0 all the same.\n\n" +
			"It asks Redis alone, and costs the same however many repositories there are: leases and failures are looked\n" +
			"for during a quarter of a second each, which on a large deployment does not find all; it says so then. What\n" +
			"receivers have spooled is on their own disks, and in their metrics.",
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
			within := term.StatusWithin
			if again {
				within = term.ForEver
			}
			err := onRedis(cmd, std, within, func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
				service := status.Reader{Client: client, Cfg: cfg, Within: status.LookWithin}
				look := func(ctx context.Context) (term.Tabled, error) {
					if len(args) == 1 {
						return readRepo(ctx, client, cfg, repo)
					}
					return service.Read(ctx)
				}
				if again {
					return term.Follow(ctx, std, out, look)
				}
				status, err := look(ctx)
				if err != nil {
					return err
				}
				return out.Show(std, status, status.Table)
			})
			if again && cmd.Context().Err() != nil { // interrupted, as it is meant to be
				return nil
			}
			return err
		},
	}
	config.AddFlags(cmd.Flags(), config.Common|config.Reading)
	cmd.Flags().BoolVarP(&again, "watch", "w", false, "show it again every 2 s, until interrupted")
	out.Add(cmd)
	return cmd
}
