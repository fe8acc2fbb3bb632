package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/bench/lock"
	"lockstep/internal/stats"
)

// contestResult is what one contestant did.
type contestResult struct {
	Name    string          `json:"name"`
	Version string          `json:"version,omitempty"`
	Median  lock.HandOffs   `json:"median"`
	Rounds  []lock.HandOffs `json:"rounds"`
}

// contestReport is the whole of it.
type contestReport struct {
	Machine     benchMachine    `json:"machine"`
	Processes   int             `json:"processes"`
	Waiters     int             `json:"waiters"`
	Hold        time.Duration   `json:"hold_ns"`
	Duration    time.Duration   `json:"duration_ns"`
	Contestants []contestResult `json:"contestants"`
}

// runContest has all contestants contend in turn, several times over.
func (b *lockBench) runContest(ctx context.Context, std streams, server *benchRedis, key string) error {
	self, err := thisProgram()
	if err != nil {
		return err
	}
	contestants := []contestant{self}
	for _, flag := range b.peers {
		peer, err := parsePeer(flag)
		if err != nil {
			return usageError(err)
		}
		contestants = append(contestants, peer)
	}
	report := contestReport{Machine: server.machine(), Processes: b.processes, Waiters: b.waiters, Hold: b.hold, Duration: b.duration}
	report.Contestants = make([]contestResult, len(contestants))
	for round := range b.rounds {
		for i, who := range contestants {
			fmt.Fprintf(std.stderr, "round %d of %d: %s\n", round+1, b.rounds, who.name)
			// No round meets what another has left behind.
			figures, version, err := b.contend(ctx, std, server, who, fmt.Sprintf("%s:%d:%d", key, round, i))
			if err != nil {
				return fmt.Errorf("bench %s: %w", who.name, err)
			}
			result := &report.Contestants[i]
			result.Name, result.Version = who.name, version
			result.Rounds = append(result.Rounds, figures)
			result.Median = lock.MedianHandOffs(result.Rounds)
		}
	}
	if err := report.print(std.stdout, b.out); err != nil {
		return err
	}
	return report.verdict()
}

// verdict is an error if any contestant's lock was none.
func (r contestReport) verdict() error {
	var errs []error
	for _, c := range r.Contestants {
		if c.Median.Overlaps > 0 {
			errs = append(errs, fmt.Errorf("bench %s: the key had two holders at once, %d times", c.Name, c.Median.Overlaps))
		}
	}
	return errors.Join(errs...)
}

// contend is one round of one contestant.
func (b *lockBench) contend(ctx context.Context, std streams, server *benchRedis, who contestant, key string) (lock.HandOffs, string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, benchWarmUp+b.duration+roundGrace, errors.New("its processes do not end"))
	defer cancel()
	args := append(who.argv[1:len(who.argv):len(who.argv)], "--redis", server.url, "--key", key, "--waiters", strconv.Itoa(b.waiters),
		"--hold", b.hold.String(), "--duration", (benchWarmUp + b.duration).String())
	workers := make([]*workerProcess, b.processes)
	for i := range workers {
		w, err := startWorkerProcess(ctx, std, who.argv[0], args)
		if err != nil {
			return lock.HandOffs{}, "", err
		}
		defer w.kill()
		workers[i] = w
	}
	version := ""
	for _, w := range workers {
		var err error
		if version, err = w.ready(); err != nil {
			return lock.HandOffs{}, "", w.explain(ctx, err)
		}
	}
	first, err := monotonic()
	if err != nil {
		return lock.HandOffs{}, "", err
	}
	for _, w := range workers {
		if _, err := io.WriteString(w.stdin, "\n"); err != nil {
			return lock.HandOffs{}, "", w.explain(ctx, err)
		}
	}
	last, err := monotonic()
	if err != nil {
		return lock.HandOffs{}, "", err
	}
	perProcess := make([][]lock.Grant, len(workers))
	var g errgroup.Group
	for i, w := range workers {
		g.Go(func() (err error) {
			if perProcess[i], err = grantsOf(w, i, b.waiters); err != nil {
				return w.explain(ctx, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return lock.HandOffs{}, "", err
	}
	var all []lock.Grant
	for _, grants := range perProcess {
		all = append(all, grants...)
	}
	during := lock.Contention{
		Processes: b.processes, Waiters: b.waiters,
		From: last + benchWarmUp.Nanoseconds(), To: first + (benchWarmUp + b.duration).Nanoseconds(),
	}
	return lock.Summarize(during, all), version, nil
}

// grants reads the worker's lines and waits for its end.
func grantsOf(w *workerProcess, process, waiters int) ([]lock.Grant, error) {
	var grants []lock.Grant
	lines := bufio.NewScanner(w.stdout)
	for lines.Scan() {
		g, err := lock.ParseGrant(process, lines.Text())
		if err != nil {
			return nil, err
		}
		if g.Waiter >= waiters {
			return nil, fmt.Errorf("grant %q: there are %d waiters", lines.Text(), waiters)
		}
		grants = append(grants, g)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	w.ended = true
	return grants, w.cmd.Wait()
}

func (r contestReport) print(w io.Writer, out output) error {
	if !out.isTable() {
		return out.document(w, r)
	}
	rounds := 0
	for _, c := range r.Contestants {
		rounds = len(c.Rounds)
	}
	fmt.Fprintf(w, "%s\n%d processes × %d waiters, hold %v, %v; rounds: %d, medians (longest wait: of all)\n\n",
		r.Machine, r.Processes, r.Waiters, r.Hold, r.Duration, rounds)
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\t\t\thand-off, ms\t\tbetween processes, ms\t\tlongest\tfewest/most grants\t\t\t")
	fmt.Fprintln(tw, "\tgrants/s\theld\tp50\tp99\tp50\tp99\twait, s\tper process\tper waiter\toverlaps\t")
	for _, c := range r.Contestants {
		m := c.Median
		fmt.Fprintf(tw, "%s\t%.0f\t%.1f %%\t%s\t%s\t%s\t%s\t%.2f\t%s\t%s\t%d\t\n",
			strings.TrimSpace(c.Name+" "+c.Version), m.GrantsPerSecond, 100*m.Busy,
			millis(m.HandOff.P50), millis(m.HandOff.P99), millis(m.Between.P50), millis(m.Between.P99),
			m.LongestWait.Seconds(), share(m.PerProcess), share(m.PerWaiter), m.Overlaps)
	}
	return tw.Flush()
}

func share(s stats.Spread) string { return fmt.Sprintf("%d/%d %.2f", s.Fewest, s.Most, s.Ratio) }
