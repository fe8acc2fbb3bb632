package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"lockstep/bench/rig"
	"lockstep/internal/redisx"
	"lockstep/internal/stats"
	"lockstep/internal/term"
)

// openLoop holds the flags of bench publish open.
type openLoop struct {
	rates        []int
	repos, files int
	skew         float64
	duration     time.Duration
	delay        time.Duration
	dir, against string
}

func newOpenCommand(std term.Streams) *cobra.Command {
	var b openLoop
	cmd := rig.Command(std, &cobra.Command{
		Use:   "open",
		Short: "Measure how long pushes take that arrive whether or not earlier ones are done",
		Long: "Push to many small repositories at random: arrivals are a Poisson process, a Zipf distribution chooses the repository.\n" +
			"The Git server runs in this process. A push is visible when its result is read, after the tree is published; its\n" +
			"latency counts from when it was due, also if this process was late. A push that a later one overtakes is visible with\n" +
			"that one. CPU time is that of the worker and of Redis apart, divided by the pushes.",
		Example: "  bin/bench publish open --rates 20 --delay 50ms\n" +
			"  bin/bench publish open --against bin/lockstep-old --json",
	}, b.check, b.run)
	flags := cmd.Flags()
	flags.IntSliceVar(&b.rates, "rates", []int{20, 40, 60}, "pushes a `second`, one after the other")
	flags.IntVar(&b.repos, "repos", 500, "number of repositories")
	flags.IntVar(&b.files, "files", 60, "number of files in each")
	flags.Float64Var(&b.skew, "zipf", 1.1, "exponent of the Zipf distribution, above 1")
	flags.DurationVar(&b.duration, "duration", 30*time.Second, "duration of each rate")
	flags.DurationVar(&b.delay, "delay", 0, "delay before the Git server handles a request")
	flags.StringVar(&b.dir, "dir", "", "`folder` for the volumes, on the file system to measure (default: TMPDIR)")
	rig.AgainstFlag(cmd, &b.against)
	return cmd
}

func (b *openLoop) check(func(string) bool) error {
	if len(b.rates) == 0 || slices.Min(b.rates) < 1 || b.repos < 1 || b.files < 2 || b.skew <= 1 || b.duration < time.Second {
		return errors.New("want --rates and --repos of 1 or more, --files of 2 or more, --zipf above 1 and --duration of 1s or more")
	}
	return nil
}

// OpenReport has a row for each side and rate.
type OpenReport struct {
	Repos int           `json:"repos"`
	Files int           `json:"files"`
	Zipf  float64       `json:"zipf"`
	Delay time.Duration `json:"delay_ns"`
	Rows  []OpenRow     `json:"rows"`
}

// OpenRow has the figures of one side at one rate.
type OpenRow struct {
	Side   string        `json:"side"`
	Rate   int           `json:"rate"`
	Pushes int           `json:"pushes"`
	Took   time.Duration `json:"took_ns"` // until all were visible
	Lag    time.Duration `json:"lag_ns"`  // the longest by which this process was late
	P50    time.Duration `json:"p50_ns"`
	P99    time.Duration `json:"p99_ns"`
	P999   time.Duration `json:"p999_ns"`
	Max    time.Duration `json:"max_ns"`
	CPU    rig.Spent     `json:"cpu_of_a_push"`
}

// arrival is a push of the schedule.
type arrival struct {
	after time.Duration // since the start
	repo  int
}

// schedule draws the arrivals of a rate. The same seed draws the same ones.
func (b *openLoop) schedule(rate int) (arrivals []arrival) {
	random := rand.New(rand.NewPCG(28, uint64(rate)))
	zipf := rand.NewZipf(random, b.skew, 1, uint64(b.repos-1))
	for after := time.Duration(0); ; {
		after += time.Duration(random.ExpFloat64() / float64(rate) * float64(time.Second))
		if after >= b.duration {
			return arrivals
		}
		arrivals = append(arrivals, arrival{after, int(zipf.Uint64())})
	}
}

func (b *openLoop) run(ctx context.Context, env *rig.Env) (rig.Report, error) {
	schedules, counts, most := map[int][]arrival{}, make([]int, b.repos), 0
	for _, rate := range b.rates {
		schedules[rate] = b.schedule(rate)
		for _, a := range schedules[rate] {
			counts[a.repo]++
			most = max(most, counts[a.repo])
		}
	}
	forge, err := env.NewForge(ctx, most+1, b.files)
	if err != nil {
		return nil, err
	}
	targets := func(side int) []target {
		all := make([]target, b.repos)
		for i := range all {
			all[i] = target{fmt.Sprintf("side-%d/repo-%d", side, i), "refs/heads/main"}
		}
		return all
	}
	fleets, err := startFleets(ctx, env, b.against, b.dir, forge, b.delay, targets)
	if err != nil {
		return nil, err
	}
	report := OpenReport{Repos: b.repos, Files: b.files, Zipf: b.skew, Delay: b.delay}
	next := make([][]int, len(fleets)) // index of the next commit, by side and repository
	for i := range next {
		next[i] = slices.Repeat([]int{1}, b.repos)
	}
	order := make([]int, len(fleets))
	for i := range order {
		order[i] = i
	}
	for n, rate := range b.rates {
		for _, i := range rig.Rotated(order, n) {
			env.Progress("%s: %d pushes a second", fleets[i].name, rate)
			row, err := fleets[i].load(ctx, schedules[rate], targets(i), next[i])
			if err != nil {
				return nil, fmt.Errorf("bench %s at %d pushes a second: %w", fleets[i].name, rate, err)
			}
			row.Rate = rate
			report.Rows = append(report.Rows, row)
		}
	}
	return report, nil
}

// load pushes as scheduled, and waits until all pushes are visible and the worker is idle. It advances next.
func (f *fleet) load(ctx context.Context, arrivals []arrival, targets []target, next []int) (row OpenRow, err error) {
	before, err := f.CPU(ctx)
	if err != nil {
		return row, err
	}
	row.Side, row.Pushes = f.name, len(arrivals)
	waits := make([]*rig.Wait, len(arrivals))
	var posting errgroup.Group
	began := time.Now()
	for i, a := range arrivals {
		due := began.Add(a.after)
		if !redisx.Pause(ctx, time.Until(due)) {
			return row, context.Cause(ctx)
		}
		row.Lag = max(row.Lag, time.Since(due))
		n := next[a.repo]
		next[a.repo]++
		f.forge.Push(targets[a.repo].repo, targets[a.repo].ref, n) // in order, however the goroutines are scheduled
		posting.Go(func() (err error) {
			waits[i], err = f.post(ctx, targets[a.repo], n, due)
			return err
		})
	}
	if err := posting.Wait(); err != nil {
		return row, err
	}
	ctx, cancel := f.patience(ctx)
	defer cancel()
	latencies := make([]time.Duration, len(waits))
	for i, wait := range waits {
		if latencies[i], err = wait.Await(ctx); err != nil {
			return row, err
		}
	}
	row.Took = time.Since(began)
	if err := rig.AwaitIdle(ctx, f.Cmd.Process.Pid, idle); err != nil {
		return row, err
	}
	after, err := f.CPU(ctx)
	if err != nil {
		return row, err
	}
	row.CPU = after.Per(len(arrivals), before)
	slices.Sort(latencies)
	at := func(p float64) time.Duration { return stats.Percentile(latencies, p) }
	row.P50, row.P99, row.P999, row.Max = at(0.5), at(0.99), at(0.999), at(1)
	return row, nil
}

// Table prints the report as text.
func (r OpenReport) Table(w io.Writer) error {
	fmt.Fprintf(w, "Open loop: %d repositories of %d files, Zipf %.2f, remote delayed by %v; from when a push is due until its result is read\n", r.Repos, r.Files, r.Zipf, r.Delay)
	tw := rig.NewTable(w)
	fmt.Fprintln(tw, "pushes/s\tside\tpushes\tp50 ms\tp99 ms\tp99.9 ms\tlongest ms\tworker CPU ms/push\tRedis CPU ms/push\tlatest start ms\t")
	for _, row := range r.Rows {
		fmt.Fprintf(tw, "%d\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", row.Rate, row.Side, row.Pushes, rig.Millis(row.P50), rig.Millis(row.P99),
			rig.Millis(row.P999), rig.Millis(row.Max), rig.Millis(row.CPU.Worker), rig.Millis(row.CPU.Redis), rig.Millis(row.Lag))
	}
	for i, row := range r.Rows {
		for _, other := range r.Rows[i+1:] {
			if other.Rate == row.Rate {
				a, b := row, other
				if a.Side != rig.SideLockstep {
					a, b = b, a
				}
				fmt.Fprintf(tw, "%d\tratio\t\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\t\n", row.Rate, stats.Ratio(a.P50, b.P50), stats.Ratio(a.P99, b.P99), stats.Ratio(a.P999, b.P999),
					stats.Ratio(a.Max, b.Max), stats.Ratio(a.CPU.Worker, b.CPU.Worker), stats.Ratio(a.CPU.Redis, b.CPU.Redis))
			}
		}
	}
	return tw.Flush()
}
