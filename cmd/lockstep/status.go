package main

import (
	"context"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/config"
)

func newStatusCommand(std streams) *cobra.Command {
	var out output
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
		Args:              wrongUse(oneArgAtMost),
		ValidArgsFunction: completeFirst(std, repositories),
		RunE: func(cmd *cobra.Command, args []string) error {
			var repo events.RepoPath
			if len(args) == 1 {
				var err error
				if repo, err = events.ParseRepoPath(args[0]); err != nil {
					return usageError(err)
				}
			}
			within := statusWithin
			if again {
				within = forEver
			}
			err := onRedis(cmd, std, within, func(ctx context.Context, cfg config.Config, client redis.UniversalClient) error {
				service := serviceReader{client: client, cfg: cfg, within: lookWithin}
				look := func(ctx context.Context) (tabled, error) {
					if len(args) == 1 {
						return readRepo(ctx, client, cfg, repo)
					}
					return service.read(ctx)
				}
				if again {
					return follow(ctx, std, out, look)
				}
				status, err := look(ctx)
				if err != nil {
					return err
				}
				return out.show(std, status, status.table)
			})
			if again && cmd.Context().Err() != nil { // interrupted, as it is meant to be
				return nil
			}
			return err
		},
	}
	config.AddFlags(cmd.Flags(), config.Common|config.Reading)
	cmd.Flags().BoolVarP(&again, "watch", "w", false, "show it again every 2 s, until interrupted")
	out.add(cmd)
	return cmd
}
