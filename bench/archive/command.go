// Package archive measures how fast a published tree is archived.
package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
	"lockstep/internal/stats"
)

// Targets.
const (
	minThroughput = 1.0      // of git archive | zstd
	maxMemory     = 50 << 20 // bytes
)

const repo = "bench/archive"

// bench holds the flags.
type bench struct {
	shapes  []string
	source  string
	percent int
	rounds  int
	level   int
}

// NewCommand returns the command bench archive.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.Command(std, &cobra.Command{
		Use:   "archive",
		Short: "Measure archives of published trees, against git archive | zstd",
		Long: "Publish trees of several shapes, and make an archive of each, as a reader does, in a new process in each round;\n" +
			"beside it git archive | zstd of the same commit, from a repository after git gc. Throughput is the ratio of the\n" +
			"medians of wall times, git's to Lockstep's. It fails if a target is missed for a shape that has one, or if two processes\n" +
			"make different archives. Needs git and zstd.",
		Example: "  go run ./bench archive\n  go run ./bench archive --shapes tiny,source --rounds 15 --json",
	}, b.check, b.run)
	flags := cmd.Flags()
	flags.StringSliceVar(&b.shapes, "shapes", shapeNames(), "the trees")
	flags.StringVar(&b.source, "source", "", "`folder` whose files are the tree source (default: the sources of Go)")
	flags.IntVar(&b.percent, "percent", 100, "size of the generated trees, in `percent`")
	flags.IntVar(&b.rounds, "rounds", 9, "number of archives of each tree by each contestant")
	flags.IntVar(&b.level, "level", 3, "`level` of zstd; 3 is its default")
	return cmd
}

func (b *bench) check(func(string) bool) error {
	if b.rounds < 1 || b.percent < 1 || len(b.shapes) == 0 {
		return errors.New("--rounds, --percent and --shapes: want at least 1 of each")
	}
	for _, name := range b.shapes {
		if !slices.Contains(shapeNames(), name) {
			return fmt.Errorf("--shapes %q: want some of %s", name, strings.Join(shapeNames(), ", "))
		}
	}
	return nil
}

// Archive has the measurements of one archive.
type Archive struct {
	Wall   time.Duration `json:"wall_ns"`
	CPU    time.Duration `json:"cpu_ns"` // user and system
	Bytes  int64         `json:"bytes"`
	Digest string        `json:"digest,omitempty"`
	Memory int64         `json:"memory_bytes,omitempty"` // peak of the process
}

// Figures has the measurements of one tree.
type Figures struct {
	Shape      string    `json:"shape"`
	Files      int       `json:"files"`
	Lockstep   []Archive `json:"lockstep"`
	Git        []Archive `json:"git"`
	Throughput float64   `json:"throughput"` // wall time of git's median over Lockstep's
	CPU        float64   `json:"cpu"`        // same ratio, of CPU time
	Memory     int64     `json:"memory_bytes"`
	Judged     bool      `json:"judged"` // the targets apply
}

// Report is the outcome.
type Report struct {
	Machine rig.Machine `json:"machine"`
	Zstd    string      `json:"zstd"`
	Level   int         `json:"level"`
	Shapes  []Figures   `json:"shapes"`
}

func (b *bench) run(ctx context.Context, env *rig.Env) (rig.Report, error) {
	machine, err := rig.GitMachine(ctx)
	if err != nil {
		return nil, err
	}
	version, err := exec.CommandContext(ctx, "zstd", "--version").Output()
	if err != nil {
		return nil, term.UsageError(fmt.Errorf("zstd is required: %w", err))
	}
	git, err := env.StartGit()
	if err != nil {
		return nil, err
	}
	report := Report{Machine: machine, Zstd: versionOf(string(version)), Level: b.level}
	for _, one := range shapes {
		if !slices.Contains(b.shapes, one.name) {
			continue
		}
		env.Progress("publishing the tree %s", one.name)
		s := stage{root: filepath.Join(env.Dir, one.name), repo: repo + "-" + one.name}
		if s.files, err = one.commit(ctx, b, git, s.repo); err != nil {
			return nil, err
		}
		if err := s.publish(ctx, git); err != nil {
			return nil, err
		}
		s.git = git.Dir(s.repo)
		figures, err := b.measure(ctx, env, s)
		if err != nil {
			return nil, err
		}
		figures.Shape, figures.Judged = one.name, one.judged
		report.Shapes = append(report.Shapes, figures)
	}
	return report, nil
}

// versionOf returns the version in the output of zstd --version.
func versionOf(text string) string {
	_, text, _ = strings.Cut(text, " v")
	text, _, _ = strings.Cut(text, ",")
	return text
}

func (b *bench) measure(ctx context.Context, env *rig.Env, s stage) (Figures, error) {
	figures := Figures{Files: s.files}
	err := env.Alternate(b.rounds, []string{"lockstep", "git archive | zstd"}, func(_, i int) error {
		if i == 0 {
			one, err := s.lockstep(ctx)
			figures.Lockstep = append(figures.Lockstep, one)
			return err
		}
		one, err := s.pipe(ctx, b.level)
		figures.Git = append(figures.Git, one)
		return err
	})
	if err != nil {
		return figures, err
	}
	wall := func(a Archive) time.Duration { return a.Wall }
	cpu := func(a Archive) time.Duration { return a.CPU }
	figures.Throughput = stats.Ratio(stats.MedianOf(figures.Git, wall), stats.MedianOf(figures.Lockstep, wall))
	figures.CPU = stats.Ratio(stats.MedianOf(figures.Git, cpu), stats.MedianOf(figures.Lockstep, cpu))
	for _, one := range figures.Lockstep {
		figures.Memory = max(figures.Memory, one.Memory)
	}
	return figures, nil
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s, zstd %s -%d; medians of %d\n\n", r.Machine, r.Zstd, r.Level, len(r.Shapes[0].Git))
	table := rig.NewTable(w)
	fmt.Fprintln(table, "\tfiles\twall, ms\tgit\tthroughput\tCPU, ms\tgit\tCPU ratio\tMB\tgit\tmemory, MB\t")
	for _, f := range r.Shapes {
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%.2f\t%s\t%s\t%.2f\t%.1f\t%.1f\t%.1f\t\n", f.Shape, f.Files,
			rig.Millis(stats.MedianOf(f.Lockstep, func(a Archive) time.Duration { return a.Wall })),
			rig.Millis(stats.MedianOf(f.Git, func(a Archive) time.Duration { return a.Wall })), f.Throughput,
			rig.Millis(stats.MedianOf(f.Lockstep, func(a Archive) time.Duration { return a.CPU })),
			rig.Millis(stats.MedianOf(f.Git, func(a Archive) time.Duration { return a.CPU })), f.CPU,
			float64(f.Lockstep[0].Bytes)/1e6, float64(f.Git[0].Bytes)/1e6, float64(f.Memory)/(1<<20))
	}
	return table.Flush()
}

// Verdict returns an error if a target is missed.
func (r Report) Verdict() error {
	var missed []error
	for _, f := range r.Shapes {
		if f.Judged && f.Throughput < minThroughput {
			missed = append(missed, fmt.Errorf("%s: %.2f of the throughput of git archive | zstd, less than %.1f", f.Shape, f.Throughput, minThroughput))
		}
		if f.Memory > maxMemory {
			missed = append(missed, fmt.Errorf("%s: a process needed %d MB, more than %d MB", f.Shape, f.Memory>>20, maxMemory>>20))
		}
		for _, one := range f.Lockstep {
			if one.Digest != f.Lockstep[0].Digest {
				missed = append(missed, fmt.Errorf("%s: two processes made archives with the digests %s and %s", f.Shape, one.Digest, f.Lockstep[0].Digest))
				break
			}
		}
	}
	return errors.Join(missed...)
}
