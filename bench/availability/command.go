package availability

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/gitserver"
)

// AvailabilityBench is what the flags of bench availability say.
type AvailabilityBench struct {
	duration         time.Duration
	Files            int
	readers, workers int
	plot             string
	out              term.Output
}

func NewCommand(std term.Streams) *cobra.Command {
	var b AvailabilityBench
	cmd := &cobra.Command{
		Use:   "availability",
		Short: "Measure how often readers meet a complete tree while pushes go on",
		Long: "Push to a repository all of whose files name one version, every tenth time by force, and have readers\n" +
			"open the published name once and read every file below it, over and over. Count the reads that met all files,\n" +
			"and one version: where several workers reset a clone in place, where one at a time does under a lock, and\n" +
			"with two Lockstep workers, of which one is killed and started anew every two seconds, while repos gc\n" +
			"compacts the store. It fails if a single read of Lockstep's was not of one complete version. Needs git and\n" +
			"redis-server, of which it starts a private one.",
		Example: "  go run ./bench availability\n" +
			"  go run ./bench availability --duration 60s --readers 8 --plot availability.svg --json",
		Args: term.WrongUse(term.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if b.Files < 2 || b.readers < 1 || b.workers < 1 || b.duration < time.Second {
				return term.UsageError(errors.New("want --files of 2 or more, --readers and --workers of 1 or more, and a --duration of 1s or more"))
			}
			app.SilenceRedis()
			report, err := b.Run(cmd.Context(), std)
			if err != nil {
				return err
			}
			if err := report.Print(std.Stdout, b.out); err != nil {
				return err
			}
			if b.plot != "" {
				if err := report.draw(b.plot); err != nil {
					return err
				}
			}
			return report.Verdict()
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&b.duration, "duration", 20*time.Second, "how long each contestant is read from")
	flags.IntVar(&b.Files, "files", 500, "how many files the repository has")
	flags.IntVar(&b.readers, "readers", 4, "how many readers read at once")
	flags.IntVar(&b.workers, "workers", 3, "how many workers reset in place")
	flags.StringVar(&b.plot, "plot", "", "also draw availability over time, into this SVG `file`")
	b.out.Add(cmd)
	return cmd
}

// AvailabilityReport is the whole of it.
type AvailabilityReport struct {
	Machine     rig.GitMachine       `json:"machine"`
	Duration    time.Duration        `json:"duration_ns"`
	Files       int                  `json:"files"`
	Readers     int                  `json:"readers"`
	Workers     int                  `json:"workers"` // that reset in place
	Contestants []AvailabilityResult `json:"contestants"`
}

// AvailabilityResult is what one contestant's readers met.
type AvailabilityResult struct {
	Name string `json:"name"`
	Availability
	Pushes int `json:"pushes"`
	Forced int `json:"forced"` // of these

	Syncs  int `json:"syncs"`  // commits brought to readers, each counted once
	Failed int `json:"failed"` // attempts at it, as index.lock conflicts are
	Killed int `json:"killed"` // workers
	GCs    int `json:"gcs"`    // times that the store was compacted

	OverTime []ReadPoint `json:"over_time"`
}

// SideLockstep is the contestant that must not fail.
const SideLockstep = "lockstep"

// Run has the contestants take their turns, each with a repository of its own.
func (b *AvailabilityBench) Run(ctx context.Context, std term.Streams) (report AvailabilityReport, err error) {
	report = AvailabilityReport{Duration: b.duration, Files: b.Files, Readers: b.readers, Workers: b.workers}
	if report.Machine, err = rig.NewGitMachine(ctx); err != nil {
		return report, err
	}
	dir, err := os.MkdirTemp("", "lockstep-bench-availability-")
	if err != nil {
		return report, err
	}
	defer os.RemoveAll(dir)
	git, err := gitserver.Start(filepath.Join(dir, "remote"))
	if err != nil {
		return report, err
	}
	defer git.Close()
	server, err := rig.OpenRedis(ctx, "")
	if err != nil {
		return report, err
	}
	defer server.Close()
	report.Machine.Redis = server.Machine().Redis
	for i, contestant := range []struct {
		name  string
		start func(*Deployment) (syncers, error)
	}{
		{"reset in place", func(r *Deployment) (syncers, error) { return startResets(ctx, r, false) }},
		{"reset in place, under a lock", func(r *Deployment) (syncers, error) { return startResets(ctx, r, true) }},
		{SideLockstep, func(r *Deployment) (syncers, error) { return startWorkers(ctx, r, std, server) }},
	} {
		fmt.Fprintf(std.Stderr, "%s: %v\n", contestant.name, b.duration)
		r := &Deployment{AvailabilityBench: b, git: git, repo: fmt.Sprintf("bench/availability-%d", i), Dir: filepath.Join(dir, fmt.Sprint(i))}
		result, err := r.Play(ctx, contestant.start)
		if err != nil {
			return report, fmt.Errorf("bench %s: %w", contestant.name, err)
		}
		result.Name = contestant.name
		report.Contestants = append(report.Contestants, result)
	}
	return report, nil
}

// Verdict is an error if Lockstep's readers met anything but complete trees of one version.
func (r AvailabilityReport) Verdict() error {
	for _, c := range r.Contestants {
		if c.Name != SideLockstep {
			continue
		}
		if err := c.Err(); err != nil {
			return fmt.Errorf("bench %s: %w", c.Name, err)
		}
		return nil
	}
	return errors.New("bench availability: Lockstep did not take part")
}

func (r AvailabilityReport) Print(w io.Writer, out term.Output) error {
	if !out.IsTable() {
		return out.Document(w, r)
	}
	fmt.Fprintf(w, "%s, Redis %s\n%d files, all of one version, pushed over and over; %d readers; %v each\n\n",
		r.Machine, r.Machine.Redis, r.Files, r.Readers, r.Duration)
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\t\tcomplete,\tfiles\tfiles\tmixed\tversions\t\t\tfailed\tworkers\t\t")
	fmt.Fprintln(tw, "\treads\tone version\tmissing\ttorn\tversions\tread\tpushes\tsyncs\tsyncs\tkilled\tgc\t")
	for _, c := range r.Contestants {
		fmt.Fprintf(tw, "%s\t%d\t%s %%\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", c.Name, c.Reads, c.Percent(), c.Missing, c.Torn, c.Mixed,
			c.Versions, c.Pushes, c.Syncs, c.Failed, c.Killed, c.GCs)
	}
	return tw.Flush()
}

// draw writes the plot.
func (r AvailabilityReport) draw(path string) error {
	plot := Plot{Title: "Reads of one complete version, while pushes go on", Run: r.Duration}
	for _, c := range r.Contestants {
		plot.Lines = append(plot.Lines, Line{Name: fmt.Sprintf("%s: %s %% of %d reads", c.Name, c.Percent(), c.Reads), Points: c.OverTime})
	}
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("--plot: %w", err)
	}
	err = plot.WriteSVG(file)
	return cmp.Or(err, file.Close())
}
