package main

import (
	"github.com/spf13/cobra"
)

func newBenchCommand(std streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure on this machine, side by side with others",
		Example: "  lockstep bench lock\n" +
			"  lockstep bench lock --hold-many 10000\n" +
			"  lockstep bench hot\n" +
			"  lockstep bench pushes\n" +
			"  lockstep bench stream\n" +
			"  lockstep bench publish\n" +
			"  lockstep bench availability\n" +
			"  lockstep bench hooks\n" +
			"  lockstep bench idle\n" +
			"  lockstep bench scrape\n" +
			"  lockstep bench start",
		Args: wrongUse(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBenchLockCommand(std), newBenchLockWorkerCommand(std), newBenchFaultsWorkerCommand(std),
		newBenchHotCommand(std), newBenchHotWorkerCommand(std), newBenchPushesCommand(std), newBenchStreamCommand(std),
		newBenchPublishCommand(std), newBenchAvailabilityCommand(std), newBenchIdleCommand(std), newBenchScrapeCommand(std), newBenchStartCommand(std),
		newBenchHooksCommand(std), newBenchHooksBareCommand(std))
	return cmd
}
