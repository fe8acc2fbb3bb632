package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/stats"
	"lockstep/internal/term"
)

// burst holds the flags of bench publish burst.
type burst struct {
	pushes, refs, files int
	dir, against        string
}

func newBurstCommand(std term.Streams) *cobra.Command {
	var b burst
	cmd := rig.Command(std, &cobra.Command{
		Use:   "burst",
		Short: "Measure what the last of many pushes to one repository costs, against the first ones",
		Long: "Push to one repository back to back: the next push begins when the result of the one before is read. The Git server\n" +
			"runs in this process. Compare the first tenth of the pushes, the middle one and the last. CPU time is that of the\n" +
			"worker and of Redis apart. Nobody acknowledges the results, so that trees are kept for their whole grace.",
		Example: "  bin/bench publish burst --refs 20 --against bin/lockstep-old",
	}, b.check, b.run)
	flags := cmd.Flags()
	flags.IntVar(&b.pushes, "pushes", 2000, "number of pushes")
	flags.IntVar(&b.refs, "refs", 1, "number of published branches, which are pushed to in turn")
	flags.IntVar(&b.files, "files", 60, "number of files in the repository")
	flags.StringVar(&b.dir, "dir", "", "`folder` for the volumes, on the file system to measure (default: TMPDIR)")
	rig.AgainstFlag(cmd, &b.against)
	return cmd
}

func (b *burst) check(func(string) bool) error {
	if b.pushes < 10 || b.refs < 1 || b.files < 2 {
		return errors.New("want --pushes of 10 or more, --refs of 1 or more and --files of 2 or more")
	}
	return nil
}

// BurstReport has the figures of each side.
type BurstReport struct {
	Pushes int         `json:"pushes"`
	Refs   int         `json:"refs"`
	Files  int         `json:"files"`
	Sides  []BurstSide `json:"sides"`
}

// BurstSide has the windows of one side: the first tenth of its pushes, the middle one and the last.
type BurstSide struct {
	Side    string      `json:"side"`
	Windows [3]tenth    `json:"windows"`
	Last    lastToFirst `json:"last_to_first"`
}

// tenth is a tenth of the pushes.
type tenth struct {
	First int           `json:"first"` // number of its first push
	P50   time.Duration `json:"p50_ns"`
	P99   time.Duration `json:"p99_ns"`
	CPU   rig.Spent     `json:"cpu_of_a_push"`
}

// lastToFirst has the ratios of the last tenth to the first.
type lastToFirst struct {
	P50, Worker, Redis float64
}

func (b *burst) run(ctx context.Context, env *rig.Env) (rig.Report, error) {
	forge, err := env.NewForge(ctx, b.pushes/b.refs+2, b.files)
	if err != nil {
		return nil, err
	}
	targets := func(side int) []target {
		all := []target{{fmt.Sprintf("side-%d/burst", side), "refs/heads/main"}}
		for i := 1; i < b.refs; i++ {
			all = append(all, target{all[0].repo, fmt.Sprintf("refs/heads/branch-%d", i)})
		}
		return all
	}
	fleets, err := startFleets(ctx, env, b.against, b.dir, forge, 0, targets)
	if err != nil {
		return nil, err
	}
	report := BurstReport{Pushes: b.pushes, Refs: b.refs, Files: b.files}
	for i := range fleets {
		report.Sides = append(report.Sides, BurstSide{Side: fleets[i].name})
	}
	// The sides take turns, a tenth each, so that both meet the same machine.
	size := b.pushes / 10
	for n := range 10 {
		for i, f := range fleets {
			env.Progress("%s: pushes %d to %d", f.name, n*size+1, (n+1)*size)
			measured, err := f.backToBack(ctx, targets(i), n*size, size)
			if err != nil {
				return nil, fmt.Errorf("bench %s: %w", f.name, err)
			}
			if window := slices.Index([]int{0, 5, 9}, n); window >= 0 {
				report.Sides[i].Windows[window] = measured
			}
		}
	}
	for i := range report.Sides {
		first, last := report.Sides[i].Windows[0], report.Sides[i].Windows[2]
		report.Sides[i].Last = lastToFirst{stats.Ratio(last.P50, first.P50), stats.Ratio(last.CPU.Worker, first.CPU.Worker), stats.Ratio(last.CPU.Redis, first.CPU.Redis)}
	}
	return report, nil
}

// backToBack pushes to the targets in turn, n times after the first pushes.
func (f *fleet) backToBack(ctx context.Context, targets []target, from, n int) (t tenth, err error) {
	ctx, cancel := f.patience(ctx)
	defer cancel()
	before, err := f.CPU(ctx)
	if err != nil {
		return t, err
	}
	latencies := make([]time.Duration, n)
	for i := range n {
		to, commit := targets[(from+i)%len(targets)], (from+i)/len(targets)+1
		f.forge.Push(to.repo, to.ref, commit)
		wait, err := f.post(ctx, to, commit, time.Now())
		if err != nil {
			return t, err
		}
		if latencies[i], err = wait.Await(ctx); err != nil {
			return t, err
		}
	}
	after, err := f.CPU(ctx)
	if err != nil {
		return t, err
	}
	visible := stats.NewLatency(latencies)
	return tenth{from + 1, visible.P50, visible.P99, after.Per(n, before)}, nil
}

// Table prints the report as text.
func (r BurstReport) Table(w io.Writer) error {
	fmt.Fprintf(w, "%d pushes back to back to one repository of %d files with %d published branches\n", r.Pushes, r.Files, r.Refs)
	tw := rig.NewTable(w)
	fmt.Fprintln(tw, "side\tpushes\tp50 ms\tp99 ms\tworker CPU ms/push\tRedis CPU ms/push\t")
	for _, side := range r.Sides {
		for _, t := range side.Windows {
			fmt.Fprintf(tw, "%s\t%d–%d\t%s\t%s\t%s\t%s\t\n", side.Side, t.First, t.First+r.Pushes/10-1, rig.Millis(t.P50), rig.Millis(t.P99), rig.Millis(t.CPU.Worker), rig.Millis(t.CPU.Redis))
		}
		fmt.Fprintf(tw, "%s\tlast / first\t%.2f\t\t%.2f\t%.2f\t\n", side.Side, side.Last.P50, side.Last.Worker, side.Last.Redis)
	}
	return tw.Flush()
}
