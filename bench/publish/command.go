// Package publish measures how long it takes until readers see a push.
package publish

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
	"lockstep/internal/gitserver"
)

// bench holds the flags.
type bench struct {
	sizes           []string
	pushes, rounds  int
	checkoutWorkers int
	idle            time.Duration
	dir, against    string
	subjects        []subject
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
			"  git worktree add  git fetch --depth 1, git worktree add, and a symlink that is replaced\n" +
			"  git-sync's steps  the same by git worktree add --no-checkout and git reset --hard, as git-sync publishes\n\n" +
			"A turn of Lockstep ends when its process has been idle for --idle: what it does after the push, such as preparing\n" +
			"the next tree, delays no other contestant, and counts as its CPU time. Before each turn the file system is synced.\n" +
			"The time of two fsyncs, of a small file and of its folder, is measured at each push. Before the pushes, first clones\n" +
			"are measured, against git clone --depth 1 alone and followed by syncfs, since a published tree survives a power cut.\n" +
			"It fails if a contestant publishes anything but the push. Needs git and redis-server; the git that is first in PATH.\n\n" +
			"A size is redis, git or tldr, for a repository of as many files, folders and bytes as theirs; folders, for 5,000\n" +
			"files in 1,261 folders; or a number of files.",
		Example: "  bin/bench publish\n" +
			"  bin/bench publish --sizes 60,tldr --pushes 10 --json\n" +
			"  bin/bench publish --sizes folders --dir /mnt/xfs --against bin/lockstep-old",
	}, b.check, b.run)
	flags := cmd.Flags()
	flags.StringSliceVar(&b.sizes, "sizes", []string{"60", "1700", "5000", "20000"}, "`sizes` of the repositories to make: redis, git, tldr, folders, or a number of files")
	flags.IntVar(&b.pushes, "pushes", 20, "number of pushes to measure for each repository")
	flags.IntVar(&b.rounds, "rounds", 5, "number of first clones to measure for each repository")
	flags.IntVar(&b.checkoutWorkers, "checkout-workers", 0, "checkout.workers of git: how many processes write files; 0: one per core, git's default is 1")
	flags.StringVar(&b.dir, "dir", "", "`folder` for the volumes and clones, on the file system to measure (default: TMPDIR)")
	flags.DurationVar(&b.idle, "idle", 300*time.Millisecond, "duration for which Lockstep must be idle before the next turn; 0s: do not wait")
	rig.AgainstFlag(cmd, &b.against)
	cmd.AddCommand(newOpenCommand(std), newBurstCommand(std))
	return cmd
}

// subject is a repository to measure with.
type subject struct {
	name  string
	shape gitserver.Shape
}

// namedShapes are sizes as of 2026.
var namedShapes = map[string]gitserver.Shape{
	"redis":   {Files: 1_623, Folders: 92, Bytes: 16_300_000},
	"git":     {Files: 4_843, Folders: 225, Bytes: 48_200_000},
	"tldr":    {Files: 38_490, Folders: 405, Bytes: 20_100_000},
	"folders": {Files: 5_000, Folders: 1_261, Bytes: 5_000 * bytesPerFile},
}

// bytesPerFile is the average in a repository of 50,000 files and 170 MB.
const bytesPerFile = 3_400

// check also sets the subjects.
func (b *bench) check(func(flag string) bool) error {
	if b.pushes < 1 || b.rounds < 1 || b.idle < 0 || len(b.sizes) == 0 {
		return errors.New("--pushes, --rounds, --sizes: want at least 1 of each; --idle: not below 0s")
	}
	for _, size := range b.sizes {
		shape, named := namedShapes[size]
		if !named {
			files, err := strconv.Atoi(size)
			if err != nil || files < 2 {
				return fmt.Errorf("--sizes has %q; want redis, git, tldr, folders, or a number of files of at least 2", size)
			}
			shape = gitserver.Shape{Files: files, Bytes: int64(files) * bytesPerFile}
		}
		b.subjects = append(b.subjects, subject{name: size, shape: shape})
	}
	return nil
}

// run measures one repository after the other.
func (b *bench) run(ctx context.Context, env *rig.Env) (rig.Report, error) {
	report := Report{Pushes: b.pushes, CheckoutWorkers: b.checkoutWorkers}
	var err error
	if b.sides, err = env.Sides(ctx, b.against); err != nil {
		return nil, err
	}
	if b.dir, err = os.MkdirTemp(b.dir, "lockstep-bench-publish-"); err != nil {
		return nil, term.UsageError(fmt.Errorf("--dir: %w", err))
	}
	env.Cleanup(func() { os.RemoveAll(b.dir) })
	if report.FileSystem, err = fileSystemName(b.dir); err != nil {
		return nil, err
	}
	for _, subject := range b.subjects {
		measured, err := b.measure(ctx, env, subject)
		if err != nil {
			return nil, fmt.Errorf("bench %s: %w", subject.name, err)
		}
		report.Repos = append(report.Repos, measured)
	}
	return report, nil
}
