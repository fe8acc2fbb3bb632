// Command bench measures Lockstep on this machine, side by side with other programs: go run ./bench.
//
// Benchmarks of the service build and start ./cmd/lockstep; BENCH_LOCKSTEP names another binary to measure.
package main

import (
	"context"

	"github.com/spf13/cobra"

	"lockstep/bench/archive"
	"lockstep/bench/availability"
	"lockstep/bench/cells"
	"lockstep/bench/hooks"
	"lockstep/bench/hot"
	"lockstep/bench/idle"
	"lockstep/bench/lfs"
	"lockstep/bench/lock"
	"lockstep/bench/look"
	"lockstep/bench/publish"
	"lockstep/bench/pushes"
	"lockstep/bench/scrape"
	"lockstep/bench/start"
	"lockstep/bench/starve"
	"lockstep/bench/stream"
	"lockstep/bench/workspace"
	"lockstep/internal/cli/term"
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
			"start ./cmd/lockstep; BENCH_LOCKSTEP names another binary to measure.",
		Example: "  go run ./bench lock\n" +
			"  go run ./bench publish",
	})
	cmd.AddCommand(
		lock.NewCommand(std), lock.NewWorkerCommand(std), lock.NewFaultsWorkerCommand(std),
		hot.NewCommand(std), hot.NewWorkerCommand(std), pushes.NewCommand(std), stream.NewCommand(std),
		lfs.NewCommand(std), lfs.NewWorkerCommand(std),
		publish.NewCommand(std), look.NewCommand(std), availability.NewCommand(std), availability.NewWorkerCommand(std), idle.NewCommand(std), scrape.NewCommand(std), start.NewCommand(std),
		hooks.NewCommand(std), hooks.NewBareCommand(std), starve.NewCommand(std), starve.NewReaderCommand(std), workspace.NewCommand(std),
		archive.NewCommand(std), archive.NewWorkerCommand(std), cells.NewCommand(std), cells.NewPlacementCommand(std),
	)
	return cmd
}
