package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/demo"
)

func newDemoCommand(std term.Streams) *cobra.Command {
	var f demo.Options
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
		Args: term.WrongUse(func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && cmd.Flags().Changed("web") && f.Web == demo.DefaultAddress { // --web ADDRESS, of which pflag takes no notice
				f.Web = args[0]
				return nil
			}
			return term.NoArgs(cmd, args)
		}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			open := cmd.Flags().Changed("web") && !cmd.Flags().Changed("duration")
			if err := term.UsageError(config.CheckAddress("--web", f.Web)); err != nil {
				return err
			}
			switch {
			case f.Duration < time.Second || f.Duration > demo.Longest:
				return term.UsageError(fmt.Errorf("--duration %v: want 1s to %v", f.Duration, demo.Longest))
			case open:
				f.Duration = 0
			}
			return f.Run(cmd.Context(), std)
		},
	}
	cmd.Flags().DurationVar(&f.Duration, "duration", 15*time.Second, "how long to push; with --web and without this: until interrupted")
	cmd.Flags().StringVar(&f.Web, "web", "", "open the dashboard on it, at this `address`")
	cmd.Flags().Lookup("web").NoOptDefVal = demo.DefaultAddress
	cmd.Flags().BoolVar(&f.Keep, "keep", false, "keep the sample repositories and the volume")
	f.Out.Add(cmd)
	return cmd
}
