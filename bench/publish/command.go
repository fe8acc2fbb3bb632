// Package publish measures how long it takes until readers see a push.
package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/term"
)

// bench holds the flags.
type bench struct {
	sizes           []int
	pushes, rounds  int
	checkoutWorkers int
	dir, against    string
	sides           []rig.Side
}

// NewCommand returns the command bench publish.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.Command(std, &cobra.Command{
		Use:   "publish",
		Short: "Measure how long a push takes to its readers, and a first clone",
		Long: "Push one file at a time to repositories of several sizes, served by git http-backend, and print how long it takes\n" +
			"until the tree is readable at its published name, and the CPU time. At each push the contestants take turns:\n\n" +
			"  lockstep          lockstep serve with a private redis-server; from just before the change that announces the\n" +
			"                    commit is added to the stream until the published name links to the new tree\n" +
			"  git reset --hard  git fetch --depth 1 and git reset --hard, which changes the tree under its readers\n" +
			"  git-sync's steps  git fetch --depth 1, git worktree add --no-checkout and git reset --hard, and a symlink that\n" +
			"                    is replaced, as git-sync publishes\n\n" +
			"A turn of Lockstep ends when its process has been idle for 0.3 s: what it does after the push, such as preparing\n" +
			"the next tree, delays no other contestant, and counts as its CPU time. Before each turn the file system is synced.\n" +
			"Before the pushes, first clones are measured, against git clone --depth 1 alone and followed by syncfs, since a published tree survives a power cut.\n" +
			"It fails if a contestant publishes anything but the push. Needs git and redis-server; the git that is first in PATH.",
		Example: "  bin/bench publish\n" +
			"  bin/bench publish --sizes 60,5000 --pushes 10 --json\n" +
			"  bin/bench publish --sizes 5000 --dir /mnt/xfs --against bin/lockstep-old",
	}, b.check, b.run)
	flags := cmd.Flags()
	flags.IntSliceVar(&b.sizes, "sizes", []int{60, 1700, 5000, 20000}, "`numbers` of files of the repositories to make")
	flags.IntVar(&b.pushes, "pushes", 20, "number of pushes to measure for each repository")
	flags.IntVar(&b.rounds, "rounds", 5, "number of first clones to measure for each repository")
	flags.IntVar(&b.checkoutWorkers, "checkout-workers", 0, "checkout.workers of git: how many processes write files; 0: one per core, git's default is 1")
	flags.StringVar(&b.dir, "dir", "", "`folder` for the volumes and clones, on the file system to measure (default: TMPDIR)")
	rig.AgainstFlag(cmd, &b.against)
	cmd.AddCommand(newOpenCommand(std), newBurstCommand(std))
	return cmd
}

// bytesPerFile is the average in a repository of 50,000 files and 170 MB.
const bytesPerFile = 3_400

func (b *bench) check(func(flag string) bool) error {
	if b.pushes < 1 || b.rounds < 1 || len(b.sizes) == 0 || slices.Min(b.sizes) < 2 {
		return errors.New("--pushes and --rounds: want at least 1 of each; --sizes: want numbers of files, of at least 2")
	}
	return nil
}

// run measures one repository after the other.
func (b *bench) run(ctx context.Context, env *rig.Env) (rig.Report, error) {
	var err error
	if b.sides, err = env.Sides(ctx, b.against); err != nil {
		return nil, err
	}
	if b.dir, err = env.TempDir(b.dir); err != nil {
		return nil, err
	}
	report := Report{Dir: b.dir, CheckoutWorkers: b.checkoutWorkers}
	for _, files := range b.sizes {
		measured, err := b.measure(ctx, env, files)
		if err != nil {
			return nil, fmt.Errorf("bench of %d files: %w", files, err)
		}
		report.Repos = append(report.Repos, measured)
	}
	return report, nil
}
