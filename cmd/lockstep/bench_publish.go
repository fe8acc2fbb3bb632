package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/bench"
	"lockstep/internal/gitserver"
)

// publishBench is what the flags of lockstep bench publish say.
type publishBench struct {
	sizes          []string
	repo           string
	pushes, rounds int
	out            output
}

func newBenchPublishCommand(std streams) *cobra.Command {
	var b publishBench
	cmd := &cobra.Command{
		Use:   "publish",
		Short: "Measure how long a push takes to its readers, and a first clone",
		Long: "Push one file at a time to repositories of several sizes, served by a real Git server, and print how long\n" +
			"it takes until the tree is readable at its published name: with Lockstep, as it is by default and with\n" +
			"--tree-reuse; with git fetch and git reset --hard, which changes the tree under its readers; and with git\n" +
			"fetch, git worktree add and a link that is flipped. All take their turns at each push. Then first clones,\n" +
			"against git clone --depth 1. It fails if anybody publishes anything else than what was pushed. Needs git.\n\n" +
			"A size is redis or git, for a repository of as many files and bytes as theirs, or a number of files.\n" +
			"TMPDIR says where it all is: on the kind of file system that the volume would be on.",
		Example: "  lockstep bench publish\n" +
			"  lockstep bench publish --sizes 60,5000 --pushes 10 --json\n" +
			"  lockstep bench publish --repo https://github.com/redis/redis.git",
		Args: wrongUse(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			subjects, err := b.check(cmd.Flags().Changed("sizes"))
			if err != nil {
				return usageError(err)
			}
			report, err := b.run(cmd.Context(), std, subjects)
			if err != nil {
				return err
			}
			return report.print(std.stdout, b.out)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&b.sizes, "sizes", []string{"redis", "git", "60", "50000"}, "`sizes` of the repositories to make: redis, git, or a number of files")
	flags.StringVar(&b.repo, "repo", "", "`URL` or path of a repository whose files are used instead, as its default branch has them")
	flags.IntVar(&b.pushes, "pushes", 30, "how many pushes to each repository are measured")
	flags.IntVar(&b.rounds, "rounds", 3, "how many first clones of each repository are measured")
	b.out.add(cmd)
	return cmd
}

// publishSubject is a repository to measure with: one to make, or a copy of another.
type publishSubject struct {
	name  string
	shape gitserver.Shape
	from  string // URL or path; "" for one to make
}

// Sizes as of 2026; a repository of a number of files has as many bytes in each as one of 50,000 files
// and 170 MB.
const (
	redisFiles, redisBytes = 1_700, 25_000_000
	gitFiles, gitBytes     = 4_800, 55_000_000
	bytesPerFile           = 3_400
)

// check returns what is measured. Sizes that nobody asked for give way to a repository that was named.
func (b *publishBench) check(sizesGiven bool) ([]publishSubject, error) {
	if b.pushes < 1 || b.rounds < 1 {
		return nil, errors.New("--pushes and --rounds: want at least 1 of each")
	}
	var subjects []publishSubject
	if b.repo == "" || sizesGiven {
		for _, size := range b.sizes {
			subject := publishSubject{name: size}
			switch size {
			case "redis":
				subject.shape = gitserver.Shape{Files: redisFiles, Bytes: redisBytes}
			case "git":
				subject.shape = gitserver.Shape{Files: gitFiles, Bytes: gitBytes}
			default:
				files, err := strconv.Atoi(size)
				if err != nil || files < 2 {
					return nil, fmt.Errorf("--sizes has %q; want redis, git, or a number of files from 2 on", size)
				}
				subject.shape = gitserver.Shape{Files: files, Bytes: int64(files) * bytesPerFile}
			}
			subjects = append(subjects, subject)
		}
	}
	if b.repo != "" {
		name := strings.TrimSuffix(filepath.Base(strings.TrimSuffix(b.repo, "/")), ".git")
		subjects = append(subjects, publishSubject{name: name, from: b.repo})
	}
	if len(subjects) == 0 {
		return nil, errors.New("--sizes is empty, and there is no --repo: nothing to measure with")
	}
	return subjects, nil
}

// gitMachine is what the figures depend on.
type gitMachine struct {
	Git      string `json:"git"`
	Redis    string `json:"redis,omitempty"` // where one takes part
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Cores    int    `json:"cores"`
}

func newGitMachine(ctx context.Context) (gitMachine, error) {
	version, err := gitserver.Git(ctx, "/", "", "version")
	if err != nil {
		return gitMachine{}, usageError(fmt.Errorf("git is needed: %w", err))
	}
	return gitMachine{
		Git: strings.TrimPrefix(version, "git version "), Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(),
	}, nil
}

func (m gitMachine) String() string {
	return fmt.Sprintf("git %s, %s %s, %d cores", m.Git, m.Go, m.Platform, m.Cores)
}

// run measures one repository after the other.
func (b *publishBench) run(ctx context.Context, std streams, subjects []publishSubject) (publishReport, error) {
	report := publishReport{Pushes: b.pushes, Rounds: b.rounds}
	var err error
	if report.Machine, err = newGitMachine(ctx); err != nil {
		return report, err
	}
	for _, subject := range subjects {
		measured, err := b.measure(ctx, std, subject)
		if err != nil {
			return report, fmt.Errorf("bench %s: %w", subject.name, err)
		}
		report.Repos = append(report.Repos, measured)
	}
	report.compare()
	return report, nil
}

// measure serves a repository, and measures first clones of it and then pushes to it.
func (b *publishBench) measure(ctx context.Context, std streams, subject publishSubject) (publishedRepo, error) {
	dir, err := os.MkdirTemp("", "lockstep-bench-publish-")
	if err != nil {
		return publishedRepo{}, err
	}
	defer os.RemoveAll(dir)
	git, err := gitserver.Start(filepath.Join(dir, "remote"))
	if err != nil {
		return publishedRepo{}, err
	}
	defer git.Close()
	fmt.Fprintf(std.stderr, "%s: make the repository\n", subject.name)
	r := &publishRun{publishBench: b, git: git, dir: dir}
	if err := r.prepare(ctx, subject); err != nil {
		return publishedRepo{}, err
	}
	measured := publishedRepo{Name: subject.name, Files: r.files, Bytes: r.bytes}
	for round := range b.rounds {
		fmt.Fprintf(std.stderr, "%s: first clones, round %d of %d\n", subject.name, round+1, b.rounds)
		if err := r.cloneOnce(ctx, round, &measured); err != nil {
			return publishedRepo{}, err
		}
	}
	fmt.Fprintf(std.stderr, "%s: %d pushes\n", subject.name, b.pushes)
	err = r.push(ctx, &measured)
	return measured, err
}

// publishedRepo is what was measured with one repository.
type publishedRepo struct {
	Name  string `json:"name"`
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`

	Pushes publishTurns `json:"pushes"`
	Clones publishTurns `json:"first_clones"`

	// Of Lockstep to the others, each the median of the turns' ratios.
	LinkedToReset       float64 `json:"linked_to_reset"`
	LinkedToResetSynced float64 `json:"linked_to_reset_synced"`
	LinkedToWorktree    float64 `json:"linked_to_worktree"`
	ReusedToReset       float64 `json:"reused_to_reset"`
	ReusedToResetSynced float64 `json:"reused_to_reset_synced"`
	CloneToClone        float64 `json:"first_clone_to_git_clone"`
	CloneToCloneSynced  float64 `json:"first_clone_to_git_clone_synced"`
}

// publishTurns are the turns that each contestant had, by its name. What one did in its nth turn, the
// others did right before or after in theirs.
type publishTurns map[string][]bench.Publication
