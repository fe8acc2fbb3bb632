// Package publish measures how long it takes until readers see a push.
package publish

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
	"lockstep/internal/gitserver"
)

// bench holds the flags.
type bench struct {
	sizes          []string
	repo           string
	pushes, rounds int
	subjects       []subject
}

// NewCommand returns the command bench publish.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.Command(std, &cobra.Command{
		Use:   "publish",
		Short: "Measure how long a push takes to its readers, and a first clone",
		Long: "Push one file at a time to repositories of several sizes, served by a real Git server, and print how long\n" +
			"it takes until the tree is readable at its published name: with Lockstep, by default and with --tree-reuse;\n" +
			"with git fetch and git reset --hard, which changes the tree under its readers; and with git fetch, git\n" +
			"worktree add and a symlink that is replaced. At each push the contestants take turns. Then measure first\n" +
			"clones, against git clone --depth 1. It fails if a contestant publishes anything but the push. Needs git.\n\n" +
			"A size is redis or git, for a repository of as many files and bytes as theirs, or a number of files.\n" +
			"TMPDIR chooses the file system: use one of the kind that the volume would be on.",
		Example: "  go run ./bench publish\n" +
			"  go run ./bench publish --sizes 60,5000 --pushes 10 --json\n" +
			"  go run ./bench publish --repo https://github.com/redis/redis.git",
	}, b.check, b.run)
	flags := cmd.Flags()
	flags.StringSliceVar(&b.sizes, "sizes", []string{"redis", "git", "60", "50000"}, "`sizes` of the repositories to make: redis, git, or a number of files")
	flags.StringVar(&b.repo, "repo", "", "`URL` or path of a repository whose default branch provides the files instead")
	flags.IntVar(&b.pushes, "pushes", 30, "number of pushes to measure for each repository")
	flags.IntVar(&b.rounds, "rounds", 3, "number of first clones to measure for each repository")
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
	"redis": {Files: 1_700, Bytes: 25_000_000},
	"git":   {Files: 4_800, Bytes: 55_000_000},
}

// bytesPerFile is the average in a repository of 50,000 files and 170 MB.
const bytesPerFile = 3_400

// check also sets the subjects. The default sizes do not apply with --repo.
func (b *bench) check(given func(flag string) bool) error {
	if b.pushes < 1 || b.rounds < 1 {
		return errors.New("--pushes and --rounds: want at least 1 of each")
	}
	if b.repo == "" || given("sizes") {
		for _, size := range b.sizes {
			shape, named := namedShapes[size]
			if !named {
				files, err := strconv.Atoi(size)
				if err != nil || files < 2 {
					return fmt.Errorf("--sizes has %q; want redis, git, or a number of files of at least 2", size)
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
	report := Report{Pushes: b.pushes, Rounds: b.rounds}
	var err error
	if report.Machine, err = rig.GitMachine(ctx); err != nil {
		return nil, err
	}
	for _, subject := range b.subjects {
		measured, err := b.measure(ctx, env, subject)
		if err != nil {
			return nil, fmt.Errorf("bench %s: %w", subject.name, err)
		}
		report.Repos = append(report.Repos, measured)
	}
	report.compare()
	return report, nil
}

// measure serves a repository, and measures first clones of it and then pushes to it.
func (b *bench) measure(ctx context.Context, env *rig.Env, subject subject) (Repo, error) {
	dir, err := os.MkdirTemp(env.Dir, "")
	if err != nil {
		return Repo{}, err
	}
	defer os.RemoveAll(dir)
	git, err := gitserver.Start(filepath.Join(dir, "remote"))
	if err != nil {
		return Repo{}, err
	}
	defer git.Close()
	env.Progress("%s: making the repository", subject.name)
	r := &run{bench: b, git: git, dir: dir}
	if err := r.prepare(ctx, subject); err != nil {
		return Repo{}, err
	}
	measured := Repo{Name: subject.name, Files: r.files, Bytes: r.bytes, Pushes: Turns{}, Clones: Turns{}}
	for round := range b.rounds {
		env.Progress("%s: first clones, round %d of %d", subject.name, round+1, b.rounds)
		if err := r.cloneOnce(ctx, round, measured.Clones); err != nil {
			return Repo{}, err
		}
	}
	env.Progress("%s: %d pushes", subject.name, b.pushes)
	return measured, r.push(ctx, measured.Pushes)
}

// Repo has the figures of one repository.
type Repo struct {
	Name  string `json:"name"`
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`

	Pushes Turns `json:"pushes"`
	Clones Turns `json:"first_clones"`

	// Ratios of Lockstep to the others, each the median of the turns' ratios.
	LinkedToReset       float64 `json:"linked_to_reset"`
	LinkedToResetSynced float64 `json:"linked_to_reset_synced"`
	LinkedToWorktree    float64 `json:"linked_to_worktree"`
	ReusedToReset       float64 `json:"reused_to_reset"`
	ReusedToResetSynced float64 `json:"reused_to_reset_synced"`
	CloneToClone        float64 `json:"first_clone_to_git_clone"`
	CloneToCloneSynced  float64 `json:"first_clone_to_git_clone_synced"`
}

// Turns are the turns of each contestant, by name. The nth turns of all contestants are consecutive.
type Turns map[string][]Publication
