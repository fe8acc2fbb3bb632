// Package availability measures how often readers find a complete tree during pushes.
package availability

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/term"
)

// bench holds the flags.
type bench struct {
	duration       time.Duration
	files, readers int
	against        string
}

// NewCommand returns the command bench availability.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.Command(std, &cobra.Command{
		Use:   "availability",
		Short: "Measure how often readers find a complete tree while pushes go on",
		Long: "Push to a repository whose files all name one version, every tenth time by force. Meanwhile readers open the\n" +
			"published name once and read every file below it, over and over. Count the reads that found all files, of one\n" +
			"version: where a worker adds work trees and replaces a symlink as git-sync does, and with two Lockstep workers,\n" +
			"one of which is killed and restarted every two seconds, in turn, while repos gc compacts the store. It fails if\n" +
			"one of Lockstep's reads was not of one complete version. Needs git and redis-server.",
		Example: "  bin/bench availability\n" +
			"  bin/bench availability --duration 60s --readers 8 --json",
	}, b.check, b.run)
	flags := cmd.Flags()
	flags.DurationVar(&b.duration, "duration", 20*time.Second, "how long to read from each contestant")
	flags.IntVar(&b.files, "files", 500, "number of files in the repository")
	flags.IntVar(&b.readers, "readers", 4, "number of concurrent readers")
	rig.AgainstFlag(cmd, &b.against)
	return cmd
}

func (b *bench) check(func(string) bool) error {
	if b.files < 2 || b.readers < 1 || b.duration < time.Second {
		return errors.New("want --files of 2 or more, --readers of 1 or more, and a --duration of 1s or more")
	}
	return nil
}

// Report compares the contestants.
type Report struct {
	Duration    time.Duration `json:"duration_ns"`
	Files       int           `json:"files"`
	Readers     int           `json:"readers"`
	Contestants []Result      `json:"contestants"`
}

// Result has the figures of one contestant's readers.
type Result struct {
	Name string `json:"name"`
	Figures
	Pushes int `json:"pushes"`
	Syncs  int `json:"syncs"`  // commits published, each counted once
	Failed int `json:"failed"` // failed attempts
	Killed int `json:"killed"` // workers
	GCs    int `json:"gcs"`    // compactions of the store
}

// run gives each contestant a turn, each with its own repository.
func (b *bench) run(ctx context.Context, env *rig.Env) (rig.Report, error) {
	report := Report{Duration: b.duration, Files: b.files, Readers: b.readers}
	sides, err := env.Sides(ctx, b.against)
	if err != nil {
		return nil, err
	}
	git, err := env.StartGit()
	if err != nil {
		return nil, err
	}
	type contestant struct {
		name  string
		start func(*turn) (syncer, error)
	}
	contestants := []contestant{
		{"git-sync's steps", func(t *turn) (syncer, error) { return startLinker(ctx, t) }},
	}
	for _, side := range sides {
		contestants = append(contestants, contestant{side.Name, func(t *turn) (syncer, error) { return startWorkers(ctx, t, env, side) }})
	}
	for i, contestant := range contestants {
		env.Progress("%s: %v", contestant.name, b.duration)
		t := &turn{bench: b, git: git, repo: fmt.Sprintf("bench/availability-%d", i), dir: filepath.Join(env.Dir, fmt.Sprint(i))}
		result, err := t.run(ctx, contestant.start)
		if err != nil {
			return nil, fmt.Errorf("bench %s: %w", contestant.name, err)
		}
		result.Name = contestant.name
		report.Contestants = append(report.Contestants, result)
	}
	return report, nil
}

// Verdict returns an error if Lockstep's readers found anything but complete trees of one version.
func (r Report) Verdict() error {
	i := slices.IndexFunc(r.Contestants, func(c Result) bool { return c.Name == rig.SideLockstep })
	if i < 0 {
		return errors.New("bench availability: no result for Lockstep")
	}
	if err := r.Contestants[i].Err(); err != nil {
		return fmt.Errorf("bench %s: %w", rig.SideLockstep, err)
	}
	return nil
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "%d files of one version, pushed repeatedly; %d readers; %v each\n\n", r.Files, r.Readers, r.Duration)
	tw := rig.NewTable(w)
	fmt.Fprintln(tw, "\t\tcomplete,\tfiles\tfiles\tmixed\tversions\t\t\tfailed\tworkers\t\t")
	fmt.Fprintln(tw, "\treads\tone version\tmissing\ttorn\tversions\tread\tpushes\tsyncs\tsyncs\tkilled\tgc\t")
	for _, c := range r.Contestants {
		fmt.Fprintf(tw, "%s\t%d\t%s %%\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", c.Name, c.Reads, c.percent(), c.Missing, c.Torn, c.Mixed,
			c.Versions, c.Pushes, c.Syncs, c.Failed, c.Killed, c.GCs)
	}
	return tw.Flush()
}
