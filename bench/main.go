// Command bench measures Lockstep on this machine, side by side with other programs.
package main

import (
	"context"

	"github.com/spf13/cobra"

	"lockstep/bench/availability"
	"lockstep/bench/hot"
	"lockstep/bench/lock"
	"lockstep/bench/publish"
	"lockstep/bench/stream"
	"lockstep/internal/term"
)

func main() { term.Main(run) }

// run runs the bench command with these arguments and returns its exit code.
func run(ctx context.Context, args []string, std term.Streams) int {
	return term.Execute(ctx, newCommand(std), args, std)
}

func newCommand(std term.Streams) *cobra.Command {
	cmd := term.NewRoot(std, &cobra.Command{
		Use:   "bench",
		Short: "Measure Lockstep on this machine, side by side with other programs",
		Long: "Measure Lockstep on this machine, side by side with other programs. Benchmarks of the service build and\n" +
			"start cmd/lockstep; BENCH_LOCKSTEP names another binary to measure.",
		Example: "  bin/bench lock\n" +
			"  bin/bench publish",
	})
	cmd.AddCommand(
		hot.NewCommand(std), hot.NewWorkerCommand(std),
		lock.NewCommand(std), lock.NewWorkerCommand(std),
		publish.NewCommand(std), availability.NewCommand(std), stream.NewCommand(std),
	)
	return cmd
}
