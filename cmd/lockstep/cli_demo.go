package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/config"
)

func newDemoCommand(std streams) *cobra.Command {
	var f demoFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the whole of it, on sample repositories",
		Long: "Start a Git server with sample repositories, an embedded Redis and two worker processes. Push to all\n" +
			"repositories, to one of them most of the time, for two apps with a token each; kill a worker while it\n" +
			"holds that one, with kill -9; rewrite a history; and read every published tree all the while, file by\n" +
			"file. What happens is shown live on standard error, and a table at the end says whether everything was\n" +
			"as promised. Needs git, and nothing else: no Redis, no network.",
		Example: "  lockstep demo\n" +
			"  lockstep demo --web\n" +
			"  lockstep demo --duration 5s --json",
		Args: wrongUse(func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && cmd.Flags().Changed("web") && f.web == demoWeb { // --web ADDRESS, of which pflag takes no notice
				f.web = args[0]
				return nil
			}
			return noArgs(cmd, args)
		}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			open := cmd.Flags().Changed("web") && !cmd.Flags().Changed("duration")
			if err := usageError(config.CheckAddress("--web", f.web)); err != nil {
				return err
			}
			switch {
			case f.duration < time.Second || f.duration > demoLongest:
				return usageError(fmt.Errorf("--duration %v: want 1s to %v", f.duration, demoLongest))
			case open:
				f.duration = 0
			}
			return f.run(cmd.Context(), std)
		},
	}
	cmd.Flags().DurationVar(&f.duration, "duration", 15*time.Second, "how long to push; with --web and without this: until interrupted")
	cmd.Flags().StringVar(&f.web, "web", "", "open the dashboard on it, at this `address`")
	cmd.Flags().Lookup("web").NoOptDefVal = demoWeb
	cmd.Flags().BoolVar(&f.keep, "keep", false, "keep the sample repositories and the volume")
	f.out.add(cmd)
	return cmd
}
