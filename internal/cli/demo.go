package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/config"
	"lockstep/internal/demo"
	"lockstep/internal/term"
)

func newDemoCommand(std term.Streams) *cobra.Command {
	var f demo.Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Demonstrate Lockstep on sample repositories",
		Long: "Start a Git server with sample repositories, an embedded Redis and two workers. Push to all\n" +
			"repositories, mostly to one of them. Kill a worker with kill -9 while it holds that repository,\n" +
			"force-push to another, and read every published tree throughout, file by file. A final table says\n" +
			"whether all guarantees held. Needs git, but no Redis and no network.",
		Example: "  lockstep demo\n" +
			"  lockstep demo --web",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("web") && !cmd.Flags().Changed("duration") {
				f.Duration = demo.Longest
			}
			if err := term.UsageError(config.CheckAddress("--web", f.Web)); err != nil {
				return err
			}
			if f.Duration < time.Second || f.Duration > demo.Longest {
				return term.UsageError(fmt.Errorf("--duration %v: want 1s to %v", f.Duration, demo.Longest))
			}
			return f.Run(cmd.Context(), std)
		},
	}
	cmd.Flags().DurationVar(&f.Duration, "duration", 15*time.Second,
		"how long to push; by default --web pushes until interrupted")
	cmd.Flags().StringVar(&f.Web, "web", "", "listen `address` of the dashboard")
	cmd.Flags().Lookup("web").NoOptDefVal = "127.0.0.1:0"
	f.Out.Add(cmd)
	return cmd
}
