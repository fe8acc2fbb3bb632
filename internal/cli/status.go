package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/status"
	"lockstep/internal/term"
)

func newStatusCommand(std term.Streams) *cobra.Command {
	var out term.Output
	return withFlags(&cobra.Command{
		Use:   "status",
		Short: "Show the state of the service",
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
			"  lockstep status --redis redis://127.0.0.1:6379 -o yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onCells(cmd, std, 10*time.Second, func(ctx context.Context, d deployment) error {
				service := status.Reader{Redis: d.redis, Config: d.cfg, Cells: d.cells, Volume: app.ViewVolume}
				found, err := service.Read(ctx)
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
		},
	}, config.Common|config.Reading, &out)
}
