// Package look measures how fast one ref of a remote with many refs is listed.
package look

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/cli/term"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/stats"
)

// The contestants.
const (
	SideFirst  = "lockstep, first look"
	SideLater  = "lockstep, later looks"
	SideGit    = "git ls-remote URL ref"
	sideWarmup = 1 // rounds that do not count
)

// Targets of SideLater.
const (
	maxBytes = 2000
	maxRatio = 1.2
)

const repo = "bench/look"

// bench holds the flags.
type bench struct{ refs, rounds int }

// NewCommand returns the command bench look.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.Command(std, &cobra.Command{
		Use:   "look",
		Short: "Measure how fast one ref of a remote with many refs is listed",
		Long: "Serve a repository with many refs by Git's own http-backend, and list one ref: with a new connection\n" +
			"that asks for the capabilities first, with one that knows them, and with git ls-remote. Prints the time\n" +
			"and the bytes on the wire, in both directions and with headers. Needs git.",
		Example: "  go run ./bench look\n  go run ./bench look --refs 1000000 --json",
	}, b.check, b.run)
	cmd.Flags().IntVar(&b.refs, "refs", 100_000, "number of refs")
	cmd.Flags().IntVar(&b.rounds, "rounds", 30, "number of requests by each contestant")
	return cmd
}

func (b *bench) check(func(string) bool) error {
	if b.refs < 1 || b.rounds < 1 {
		return errors.New("--refs and --rounds: want at least 1 of each")
	}
	return nil
}

// Figures are those of one contestant.
type Figures struct {
	Side  string          `json:"side"`
	Took  []time.Duration `json:"took_ns"`
	P50   time.Duration   `json:"p50_ns"`
	Bytes int64           `json:"bytes"` // maximum of the rounds
	ToGit float64         `json:"to_git"`
}

// Report is the outcome.
type Report struct {
	Machine rig.Machine `json:"machine"`
	Refs    int         `json:"refs"`
	Sides   []Figures   `json:"sides"`
}

func (b *bench) run(ctx context.Context, env *rig.Env) (rig.Report, error) {
	machine, err := rig.GitMachine(ctx)
	if err != nil {
		return nil, err
	}
	git, err := env.StartGit()
	if err != nil {
		return nil, err
	}
	head, err := git.Create(ctx, repo, map[string]string{"README": "hello\n"})
	if err == nil {
		err = git.ManyRefs(repo, head, b.refs)
	}
	if err != nil {
		return nil, err
	}
	meter, err := git.StartMeter()
	if err != nil {
		return nil, err
	}
	env.Cleanup(meter.Close)
	known, err := wire.NewNetwork(wire.Config{})
	if err != nil {
		return nil, err
	}
	env.Cleanup(known.Close)
	l := looker{env: env, url: meter.URL(repo), ref: fmt.Sprintf("refs/heads/many/%06d", (b.refs+1)/2), head: head, known: known}
	report := Report{Machine: machine, Refs: b.refs}
	names := []string{SideFirst, SideLater, SideGit}
	for _, name := range names {
		report.Sides = append(report.Sides, Figures{Side: name})
	}
	err = env.Alternate(b.rounds+sideWarmup, names, func(round, i int) error {
		side := &report.Sides[i]
		meter.Take()
		began := time.Now()
		if err := l.look(ctx, side.Side); err != nil {
			return fmt.Errorf("%s: %w", side.Side, err)
		}
		if took, used := time.Since(began), meter.Take(); round >= sideWarmup {
			side.Took, side.Bytes = append(side.Took, took), max(side.Bytes, used)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range report.Sides {
		side := &report.Sides[i]
		side.P50, side.ToGit = stats.Median(side.Took), stats.MedianRatio(side.Took, report.Sides[2].Took)
	}
	return report, nil
}

// looker lists the ref.
type looker struct {
	env            *rig.Env
	url, ref, head string
	known          *wire.Network // knows the capabilities after its first use
}

func (l looker) look(ctx context.Context, side string) error {
	switch side {
	case SideGit:
		out, err := gitserver.Git(ctx, l.env.Dir, "", "ls-remote", l.url, l.ref)
		if want := l.head + "\t" + l.ref; err == nil && out != want {
			return fmt.Errorf("got %q, want %q", out, want)
		}
		return err
	case SideFirst:
		n, err := wire.NewNetwork(wire.Config{})
		if err != nil {
			return err
		}
		defer n.Close()
		return l.resolve(ctx, n)
	}
	return l.resolve(ctx, l.known)
}

func (l looker) resolve(ctx context.Context, n *wire.Network) error {
	ref, err := events.ParseRef(l.ref)
	if err != nil {
		return err
	}
	r, err := n.DialAndList(ctx, l.url, wire.Auth{}, false, wire.Limits{MaxPackBytes: 1 << 30, Timeout: time.Minute}, l.ref)
	if err != nil {
		return err
	}
	defer r.Close()
	tip, err := r.Resolve(ref)
	if err == nil && tip.Commit.String() != l.head {
		return fmt.Errorf("got %s, want %s", tip.Commit, l.head)
	}
	return err
}

// Verdict returns an error if SideLater exceeds its targets.
func (r Report) Verdict() error {
	later := r.Sides[1]
	if later.Bytes > maxBytes || later.ToGit > maxRatio {
		return fmt.Errorf("listing one ref takes %d bytes and %.2f × the time of git ls-remote; want at most %d and %.1f", later.Bytes, later.ToGit, maxBytes, maxRatio)
	}
	return nil
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s\nOne look at one ref of %d; medians of %d\n\n", r.Machine, r.Refs, len(r.Sides[0].Took))
	table := rig.NewTable(w)
	fmt.Fprintln(table, "\tms\tbytes\tto git\t")
	for _, s := range r.Sides {
		fmt.Fprintf(table, "%s\t%s\t%d\t%.2f\t\n", s.Side, rig.Millis(s.P50), s.Bytes, s.ToGit)
	}
	return table.Flush()
}
