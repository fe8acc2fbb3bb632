package cli

import (
	"context"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cells"
	"lockstep/internal/config"
	"lockstep/internal/status"
	"lockstep/internal/term"
)

func newStatusCommand(std term.Streams) *cobra.Command {
	var out term.Output
	var again bool
	cmd := &cobra.Command{
		Use:   "status [owner/name]",
		Short: "Show the state of the service or of one repository",
		Long: "Show the state of the service on one screen: first what needs a person, and what waits for something\n" +
			"and goes on by itself; then lag and pending entries, the current work of each worker, contended leases,\n" +
			"hosts, followers, failing repositories and dead letters and, if --root is the deployment's volume, its\n" +
			"free space. The exit code is 0 anyway.\n" +
			"A persist line warns if Redis may lose what it has confirmed, or if that could not be determined.\n" +
			"\n" +
			"It only reads Redis, at a cost independent of the number of repositories: it searches for leases and\n" +
			"missing files for a quarter of a second each, and says so if that does not cover all of them.\n" +
			"Spooled webhooks are in the metrics of the receivers only.",
		Example: "  lockstep status --redis redis://127.0.0.1:6379\n" +
			"  lockstep status --watch --redis redis://127.0.0.1:6379\n" +
			"  lockstep status acme/widgets --redis redis://127.0.0.1:6379 -o yaml",
		Args: term.WrongUse(term.OneArgAtMost),
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
			err := onCells(cmd, std, timeout, func(
				ctx context.Context, cfg config.Config, client redis.UniversalClient, set *cells.Set,
			) error {
				service := status.Reader{Redis: client, Config: cfg, Cells: set, Volume: app.ViewVolume}
				read := func(ctx context.Context) (term.Table, error) { return service.Read(ctx) }
				if len(args) == 1 {
					cell, err := set.Of(repo)
					if err != nil {
						return err
					}
					read = func(ctx context.Context) (term.Table, error) {
						detail, err := readRepo(ctx, client, cfg.In(cell), repo)
						return detail, cell.Explain(err)
					}
				}
				if again {
					return term.Follow(ctx, std, out, read)
				}
				found, err := read(ctx)
				if err != nil {
					return err
				}
				if err := out.Show(std, found, found.Table); err != nil {
					return err
				}
				if all, ok := found.(status.AllCells); ok {
					return lacking(all.Missing)
				}
				return nil
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
