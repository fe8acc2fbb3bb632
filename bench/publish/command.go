// Package publish measures how long it takes until readers see a push.
package publish

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
	"lockstep/internal/gitserver"
)

// bench holds the flags.
type bench struct {
	sizes, peers         []string
	binaries, durability []string
	repo, dir            string
	pushes, rounds       int
	writer, webhook      bool
	idle                 time.Duration
	subjects             []subject
	versions             []binary // of Lockstep
}

const (
	peerReset    = "reset"
	peerWorktree = "worktree"
)

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
			"  git worktree add  git fetch, git worktree add, and a symlink that is replaced\n\n" +
			"A turn of Lockstep ends when its process has been idle for --idle: what it does after the push, such as preparing\n" +
			"the next tree, delays no other contestant, and counts as its CPU time. Before each turn the file system is synced,\n" +
			"except with --writer. The time of two fsyncs, of a small file and of its folder, is measured at each push.\n" +
			"Before the pushes, first clones are measured, against git clone --depth 1. It fails if a contestant publishes\n" +
			"anything but the push. Needs git and redis-server.\n\n" +
			"A size is redis, git or tldr, for a repository of as many files, folders and bytes as theirs; folders, for 5,000\n" +
			"files in 1,261 folders; or a number of files.",
		Example: "  bin/bench publish\n" +
			"  bin/bench publish --sizes 60,5000 --pushes 10 --json\n" +
			"  bin/bench publish --sizes folders --dir /mnt/xfs --writer --durability power,process\n" +
			"  bin/bench publish --sizes git --binary old=bin/lockstep-old\n" +
			"  bin/bench publish --repo https://github.com/redis/redis.git",
	}, b.check, b.run)
	flags := cmd.Flags()
	flags.StringSliceVar(&b.sizes, "sizes", []string{"redis", "git", "tldr", "folders"}, "`sizes` of the repositories to make: redis, git, tldr, folders, or a number of files")
	flags.StringVar(&b.repo, "repo", "", "`URL` or path of a repository whose default branch provides the files instead")
	flags.IntVar(&b.pushes, "pushes", 30, "number of pushes to measure for each repository")
	flags.IntVar(&b.rounds, "rounds", 3, "number of first clones to measure for each repository")
	flags.StringSliceVar(&b.peers, "peers", []string{peerReset, peerWorktree}, "what to compare pushes with: reset, worktree")
	flags.StringArrayVar(&b.binaries, "binary", nil, "`NAME=PATH` of another lockstep binary to compare with; repeatable")
	flags.StringSliceVar(&b.durability, "durability", nil, "values of the setting durability: a contestant for each (default: do not set it)")
	flags.BoolVar(&b.writer, "writer", false, "measure beside a neighbour that writes 5,000 files in a loop on the same file system")
	flags.BoolVar(&b.webhook, "webhook", true, "announce pushes as a verified webhook does, so that Lockstep fetches the commit while it lists the refs")
	flags.StringVar(&b.dir, "dir", "", "`folder` for the volumes and clones, on the file system to measure (default: TMPDIR)")
	flags.DurationVar(&b.idle, "idle", 300*time.Millisecond, "duration for which Lockstep must be idle before the next turn; 0s: do not wait")
	return cmd
}

// subject is a repository to measure with: generated, or a copy of another.
type subject struct {
	name  string
	shape gitserver.Shape
	from  string // URL or path of the original; "" to generate one
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

// check also sets the subjects and the versions. The default sizes do not apply with --repo.
func (b *bench) check(given func(flag string) bool) error {
	if b.pushes < 1 || b.rounds < 1 || b.idle < 0 {
		return errors.New("--pushes, --rounds: want at least 1 of each; --idle: not below 0s")
	}
	for _, peer := range b.peers {
		if peer != peerReset && peer != peerWorktree {
			return fmt.Errorf("--peers has %q; want %s or %s", peer, peerReset, peerWorktree)
		}
	}
	for _, value := range b.binaries {
		name, path, _ := strings.Cut(value, "=")
		if name == "" || path == "" {
			return fmt.Errorf("--binary is %q; want NAME=PATH", value)
		}
		b.versions = append(b.versions, binary{name: name, path: path})
	}
	if b.repo == "" || given("sizes") {
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
	}
	if b.repo != "" {
		name := strings.TrimSuffix(filepath.Base(strings.TrimSuffix(b.repo, "/")), ".git")
		b.subjects = append(b.subjects, subject{name: name, from: b.repo})
	}
	if len(b.subjects) == 0 {
		return errors.New("--sizes is empty, and there is no --repo: nothing to measure with")
	}
	return nil
}

// run measures one repository after the other.
func (b *bench) run(ctx context.Context, env *rig.Env) (rig.Report, error) {
	report := Report{Pushes: b.pushes, Writer: b.writer}
	var err error
	if report.Machine, err = rig.GitMachine(ctx); err != nil {
		return nil, err
	}
	if b.versions, err = b.contestants(ctx, env); err != nil {
		return nil, err
	}
	for _, v := range b.versions {
		report.Versions = append(report.Versions, v.name)
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

// contestants returns the versions of Lockstep to measure: each binary with each durability that it has.
func (b *bench) contestants(ctx context.Context, env *rig.Env) (versions []binary, err error) {
	own, err := env.Lockstep(ctx)
	if err != nil {
		return nil, err
	}
	for i, v := range slices.Concat([]binary{{name: SideLockstep, path: own}}, b.versions) {
		if v.path, err = filepath.Abs(v.path); err != nil {
			return nil, err
		}
		has, err := v.hasSetting(ctx, "durability")
		switch {
		case err != nil:
			return nil, err
		case len(b.durability) == 0 || !has && i > 0:
			versions = append(versions, v)
			continue
		case !has:
			return nil, term.UsageError(errors.New("--durability: this binary does not have that setting"))
		}
		for _, durability := range b.durability {
			versions = append(versions, binary{name: v.name + " --durability " + durability, path: v.path, args: []string{"--durability", durability}})
		}
	}
	return versions, nil
}
