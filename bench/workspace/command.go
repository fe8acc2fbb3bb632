// Package workspace measures how fast writable copies of a published tree are made, and what many of them cost.
package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
	"lockstep/internal/gitserver"
	"lockstep/internal/stats"
)

// The contestants. Each makes a copy, runs a command in it, and removes the copy.
const (
	SideTrue     = "workspace exec -- true"
	SideStatus   = "workspace exec -- git status"
	SideCreate   = "workspace create, rm"
	SideWorktree = "git worktree add, remove --force"
	SideClone    = "git clone --shared, rm -r"
)

// Targets.
const (
	maxP99      = 100 * time.Millisecond // of SideTrue
	maxOverhead = 128 << 10              // bytes on disk of a workspace besides what its command writes
)

const repo = "bench/workspace"

// bench holds the flags.
type bench struct {
	files, rounds, peerRounds int
	atOnce                    int
	bytes                     int64
	scratch                   string
}

// NewCommand returns the command bench workspace.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.Command(std, &cobra.Command{
		Use:   "workspace",
		Short: "Measure how fast writable copies of a tree are made, and what many of them cost",
		Long: "Publish a tree, and make workspaces of it as overlays, one after another; beside them git worktrees and clones of\n" +
			"a complete local clone. Then run many workspaces at once, each of which changes a file of the tree and writes\n" +
			"a new one. While all are there, it checks that none sees another's files, and measures their disk space. It\n" +
			"fails if a target is missed, if the tree has changed, or if anything is left. Needs git, and permission to mount overlays.",
		Example: "  go run ./bench workspace\n  go run ./bench workspace --files 5000 --at-once 50 --json",
	}, b.check, b.run)
	flags := cmd.Flags()
	flags.IntVar(&b.files, "files", 50_000, "number of files in the tree")
	flags.IntVar(&b.rounds, "rounds", 200, "number of workspaces made one after another, for each command")
	flags.IntVar(&b.peerRounds, "peer-rounds", 5, "number of git worktrees and clones")
	flags.IntVar(&b.atOnce, "at-once", 200, "number of workspaces at once")
	flags.Int64Var(&b.bytes, "bytes", 1<<20, "`bytes` that each of these writes")
	flags.StringVar(&b.scratch, "scratch", "", "`folder` for written files (default: a temporary one)")
	return cmd
}

func (b *bench) check(func(string) bool) error {
	if b.files < 1 || b.rounds < 1 || b.peerRounds < 0 || b.atOnce < 1 || b.bytes < 1 {
		return errors.New("--files, --rounds, --at-once and --bytes: want at least 1 of each")
	}
	return nil
}

// Figures has the measurements of one contestant.
type Figures struct {
	Side string          `json:"side"`
	Took []time.Duration `json:"took_ns"`
	P50  time.Duration   `json:"p50_ns"`
	P99  time.Duration   `json:"p99_ns"`
}

// Report is the outcome.
type Report struct {
	Machine rig.Machine `json:"machine"`
	User    int         `json:"user"` // root needs no user namespace
	Files   int         `json:"files"`
	Sides   []Figures   `json:"sides"`
	AtOnce  Crowd       `json:"at_once"`
}

func (b *bench) run(ctx context.Context, env *rig.Env) (rig.Report, error) {
	machine, err := rig.GitMachine(ctx)
	if err != nil {
		return nil, err
	}
	s, err := b.stage(ctx, env)
	if err != nil {
		return nil, err
	}
	report := Report{Machine: machine, User: os.Geteuid(), Files: b.files}
	for _, side := range []struct {
		name   string
		rounds int
		run    func(context.Context, string) error
	}{
		{SideTrue, b.rounds, s.exec("true")},
		{SideStatus, max(1, b.rounds/10), s.exec("git", "status", "--porcelain")},
		{SideCreate, s.creates(b.rounds), s.create},
		{SideWorktree, b.peerRounds, s.worktree},
		{SideClone, b.peerRounds, s.clone},
	} {
		env.Progress("%s: %d rounds", side.name, side.rounds)
		figures := Figures{Side: side.name}
		for round := range side.rounds + 1 { // the first does not count
			began := time.Now()
			if err := side.run(ctx, filepath.Join(env.Dir, "copy")); err != nil {
				return nil, fmt.Errorf("%s: %w", side.name, err)
			}
			if round > 0 {
				figures.Took = append(figures.Took, time.Since(began))
			}
			if side.rounds == 0 {
				break
			}
		}
		if len(figures.Took) > 0 {
			sorted := slices.Sorted(slices.Values(figures.Took))
			figures.P50, figures.P99 = stats.Percentile(sorted, 0.5), stats.Percentile(sorted, 0.99)
		}
		report.Sides = append(report.Sides, figures)
	}
	env.Progress("%d workspaces at once", b.atOnce)
	report.AtOnce, err = s.crowd(ctx, b.atOnce, b.bytes)
	return report, err
}

// stage is a published tree and a clone of the same repository.
type stage struct {
	lockstep, root, scratch, clonePath string
	environ                            []string
}

func (b *bench) stage(ctx context.Context, env *rig.Env) (*stage, error) {
	program, err := env.Lockstep(ctx)
	if err != nil {
		return nil, err
	}
	git, err := env.StartGit()
	if err != nil {
		return nil, err
	}
	env.Progress("publishing a tree of %d files", b.files)
	if _, err := git.Generate(ctx, repo, gitserver.Shape{Files: b.files, Bytes: int64(b.files) * 4000}); err != nil {
		return nil, err
	}
	s := &stage{lockstep: program, root: filepath.Join(env.Dir, "root"), scratch: filepath.Join(env.Dir, "scratch"), clonePath: filepath.Join(env.Dir, "clone"), environ: env.Environ}
	if b.scratch != "" {
		if s.scratch, err = os.MkdirTemp(b.scratch, "lockstep-bench-"); err != nil {
			return nil, err
		}
		env.Cleanup(func() { os.RemoveAll(s.scratch) })
	} else if err := os.Mkdir(s.scratch, 0o755); err != nil {
		return nil, err
	}
	if err := s.command(ctx, program, "sync", git.URL(repo), "--root", s.root); err != nil {
		return nil, err
	}
	if b.peerRounds > 0 {
		err = rig.CloneWithGit(ctx, git.URL(repo), s.clonePath)
	}
	return s, err
}

// command runs a program, and returns its output as part of an error.
func (s *stage) command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = s.environ
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// execArgs returns the arguments of a command in an overlay.
func (s *stage) execArgs(command ...string) []string {
	return append([]string{"workspace", "exec", repo, "--kind", "overlay", "--root", s.root, "--scratch", s.scratch, "--"}, command...)
}

func (s *stage) exec(command ...string) func(context.Context, string) error {
	return func(ctx context.Context, _ string) error {
		return s.command(ctx, s.lockstep, s.execArgs(command...)...)
	}
}

// creates returns the number of rounds of create: none for users who cannot mount.
func (s *stage) creates(rounds int) int {
	if os.Geteuid() != 0 {
		return 0
	}
	return rounds
}

func (s *stage) create(ctx context.Context, dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	err := s.command(ctx, s.lockstep, "workspace", "create", repo, dir, "--kind", "overlay", "--root", s.root)
	if err == nil {
		err = s.command(ctx, s.lockstep, "workspace", "rm", dir, "--root", s.root)
	}
	return err
}

func (s *stage) worktree(ctx context.Context, dir string) error {
	if _, err := os.Lstat(s.clonePath); err != nil {
		return nil //nolint:nilerror // no rounds were asked for
	}
	_, err := gitserver.Git(ctx, s.clonePath, "", "worktree", "add", "--quiet", "--detach", dir)
	if err == nil {
		_, err = gitserver.Git(ctx, s.clonePath, "", "worktree", "remove", "--force", dir)
	}
	return err
}

func (s *stage) clone(ctx context.Context, dir string) error {
	if _, err := os.Lstat(s.clonePath); err != nil {
		return nil //nolint:nilerror // no rounds were asked for
	}
	_, err := gitserver.Git(ctx, filepath.Dir(dir), "", "clone", "--quiet", "--shared", s.clonePath, dir)
	return errors.Join(err, os.RemoveAll(dir))
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s; user %d; a tree of %d files\n\n", r.Machine, r.User, r.Files)
	table := rig.NewTable(w)
	fmt.Fprintln(table, "\trounds\tp50, ms\tp99, ms\t")
	for _, side := range r.Sides {
		if len(side.Took) > 0 {
			fmt.Fprintf(table, "%s\t%d\t%s\t%s\t\n", side.Side, len(side.Took), rig.Millis(side.P50), rig.Millis(side.P99))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return r.AtOnce.table(w)
}

// Verdict returns an error if a target is missed.
func (r Report) Verdict() error {
	var missed []error
	if p99 := r.Sides[0].P99; p99 > maxP99 {
		missed = append(missed, fmt.Errorf("%s: p99 is %s ms, more than %s ms", SideTrue, rig.Millis(p99), rig.Millis(maxP99)))
	}
	return errors.Join(append(missed, r.AtOnce.verdict()...)...)
}
