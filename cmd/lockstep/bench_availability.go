package main

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

	"lockstep/bench"
	"lockstep/internal/gitserver"
)

// availabilityBench is what the flags of lockstep bench availability say.
type availabilityBench struct {
	duration         time.Duration
	files            int
	readers, workers int
	plot             string
	out              output
}

func newBenchAvailabilityCommand(std streams) *cobra.Command {
	var b availabilityBench
	cmd := &cobra.Command{
		Use:   "availability",
		Short: "Measure how often readers meet a complete tree while pushes go on",
		Long: "Push to a repository all of whose files name one version, every tenth time by force, and have readers\n" +
			"open the published name once and read every file below it, over and over. Count the reads that met all files,\n" +
			"and one version: where several workers reset a clone in place, where one at a time does under a lock, and\n" +
			"with two Lockstep workers, of which one is killed and started anew every two seconds, while repos gc\n" +
			"compacts the store. It fails if a single read of Lockstep's was not of one complete version. Needs git and\n" +
			"redis-server, of which it starts a private one.",
		Example: "  lockstep bench availability\n" +
			"  lockstep bench availability --duration 60s --readers 8 --plot availability.svg --json",
		Args: wrongUse(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if b.files < 2 || b.readers < 1 || b.workers < 1 || b.duration < time.Second {
				return usageError(errors.New("want --files of 2 or more, --readers and --workers of 1 or more, and a --duration of 1s or more"))
			}
			silenceRedis()
			report, err := b.run(cmd.Context(), std)
			if err != nil {
				return err
			}
			if err := report.print(std.stdout, b.out); err != nil {
				return err
			}
			if b.plot != "" {
				if err := report.draw(b.plot); err != nil {
					return err
				}
			}
			return report.verdict()
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&b.duration, "duration", 20*time.Second, "how long each contestant is read from")
	flags.IntVar(&b.files, "files", 500, "how many files the repository has")
	flags.IntVar(&b.readers, "readers", 4, "how many readers read at once")
	flags.IntVar(&b.workers, "workers", 3, "how many workers reset in place")
	flags.StringVar(&b.plot, "plot", "", "also draw availability over time, into this SVG `file`")
	b.out.add(cmd)
	return cmd
}

// availabilityReport is the whole of it.
type availabilityReport struct {
	Machine     gitMachine           `json:"machine"`
	Duration    time.Duration        `json:"duration_ns"`
	Files       int                  `json:"files"`
	Readers     int                  `json:"readers"`
	Workers     int                  `json:"workers"` // that reset in place
	Contestants []availabilityResult `json:"contestants"`
}

// availabilityResult is what one contestant's readers met.
type availabilityResult struct {
	Name string `json:"name"`
	bench.Availability
	Pushes int `json:"pushes"`
	Forced int `json:"forced"` // of these

	Syncs  int `json:"syncs"`  // commits brought to readers, each counted once
	Failed int `json:"failed"` // attempts at it, as index.lock conflicts are
	Killed int `json:"killed"` // workers
	GCs    int `json:"gcs"`    // times that the store was compacted

	OverTime []bench.ReadPoint `json:"over_time"`
}

// sideLockstep is the contestant that must not fail.
const sideLockstep = "lockstep"

// run has the contestants take their turns, each with a repository of its own.
func (b *availabilityBench) run(ctx context.Context, std streams) (report availabilityReport, err error) {
	report = availabilityReport{Duration: b.duration, Files: b.files, Readers: b.readers, Workers: b.workers}
	if report.Machine, err = newGitMachine(ctx); err != nil {
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
	server, err := openBenchRedis(ctx, "")
	if err != nil {
		return report, err
	}
	defer server.Close()
	report.Machine.Redis = server.machine().Redis
	for i, contestant := range []struct {
		name  string
		start func(*availabilityRun) (syncers, error)
	}{
		{"reset in place", func(r *availabilityRun) (syncers, error) { return startResets(ctx, r, false) }},
		{"reset in place, under a lock", func(r *availabilityRun) (syncers, error) { return startResets(ctx, r, true) }},
		{sideLockstep, func(r *availabilityRun) (syncers, error) { return startWorkers(ctx, r, std, server) }},
	} {
		fmt.Fprintf(std.stderr, "%s: %v\n", contestant.name, b.duration)
		r := &availabilityRun{availabilityBench: b, git: git, repo: fmt.Sprintf("bench/availability-%d", i), dir: filepath.Join(dir, fmt.Sprint(i))}
		result, err := r.play(ctx, contestant.start)
		if err != nil {
			return report, fmt.Errorf("bench %s: %w", contestant.name, err)
		}
		result.Name = contestant.name
		report.Contestants = append(report.Contestants, result)
	}
	return report, nil
}

// verdict is an error if Lockstep's readers met anything but complete trees of one version.
func (r availabilityReport) verdict() error {
	for _, c := range r.Contestants {
		if c.Name != sideLockstep {
			continue
		}
		if err := c.Err(); err != nil {
			return fmt.Errorf("bench %s: %w", c.Name, err)
		}
		return nil
	}
	return errors.New("bench availability: Lockstep did not take part")
}

func (r availabilityReport) print(w io.Writer, out output) error {
	if !out.isTable() {
		return out.document(w, r)
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
func (r availabilityReport) draw(path string) error {
	plot := bench.Plot{Title: "Reads of one complete version, while pushes go on", Run: r.Duration}
	for _, c := range r.Contestants {
		plot.Lines = append(plot.Lines, bench.Line{Name: fmt.Sprintf("%s: %s %% of %d reads", c.Name, c.Percent(), c.Reads), Points: c.OverTime})
	}
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("--plot: %w", err)
	}
	err = plot.WriteSVG(file)
	return cmp.Or(err, file.Close())
}
