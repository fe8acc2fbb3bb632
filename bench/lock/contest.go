package lock

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

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
	"lockstep/internal/stats"
)

// ContestResult is what one contestant did.
type ContestResult struct {
	Name    string     `json:"name"`
	Version string     `json:"version,omitempty"`
	Median  HandOffs   `json:"median"`
	Rounds  []HandOffs `json:"rounds"`
}

// ContestReport is the whole of it.
type ContestReport struct {
	Machine     rig.Machine     `json:"machine"`
	Processes   int             `json:"processes"`
	Waiters     int             `json:"waiters"`
	Hold        time.Duration   `json:"hold_ns"`
	Duration    time.Duration   `json:"duration_ns"`
	Contestants []ContestResult `json:"contestants"`
}

// runContest has all contestants contend in turn, several times over.
func (b *Bench) runContest(ctx context.Context, std term.Streams, server *rig.Redis, key string) error {
	self, err := thisProgram()
	if err != nil {
		return err
	}
	contestants := []rig.Contestant{self}
	for _, flag := range b.peers {
		peer, err := rig.ParsePeer(flag)
		if err != nil {
			return term.UsageError(err)
		}
		contestants = append(contestants, peer)
	}
	report := ContestReport{Machine: server.Machine(), Processes: b.Processes, Waiters: b.Waiters, Hold: b.hold, Duration: b.Duration}
	report.Contestants = make([]ContestResult, len(contestants))
	for round := range b.rounds {
		for i, who := range contestants {
			fmt.Fprintf(std.Stderr, "round %d of %d: %s\n", round+1, b.rounds, who.Name)
			// No round meets what another has left behind.
			figures, version, err := b.Contend(ctx, std, server, who, fmt.Sprintf("%s:%d:%d", key, round, i))
			if err != nil {
				return fmt.Errorf("bench %s: %w", who.Name, err)
			}
			result := &report.Contestants[i]
			result.Name, result.Version = who.Name, version
			result.Rounds = append(result.Rounds, figures)
			result.Median = MedianHandOffs(result.Rounds)
		}
	}
	if err := report.Print(std.Stdout, b.out); err != nil {
		return err
	}
	return report.Verdict()
}

// Verdict is an error if any contestant's lock was none.
func (r ContestReport) Verdict() error {
	var errs []error
	for _, c := range r.Contestants {
		if c.Median.Overlaps > 0 {
			errs = append(errs, fmt.Errorf("bench %s: the key had two holders at once, %d times", c.Name, c.Median.Overlaps))
		}
	}
	return errors.Join(errs...)
}

// Contend is one round of one contestant.
func (b *Bench) Contend(ctx context.Context, std term.Streams, server *rig.Redis, who rig.Contestant, key string) (HandOffs, string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, rig.WarmUp+b.Duration+rig.RoundGrace, errors.New("its processes do not end"))
	defer cancel()
	args := append(who.Argv[1:len(who.Argv):len(who.Argv)], "--redis", server.Url, "--key", key, "--waiters", strconv.Itoa(b.Waiters),
		"--hold", b.hold.String(), "--duration", (rig.WarmUp + b.Duration).String())
	workers := make([]*rig.Worker, b.Processes)
	for i := range workers {
		w, err := rig.StartWorker(ctx, std, who.Argv[0], args)
		if err != nil {
			return HandOffs{}, "", err
		}
		defer w.Kill()
		workers[i] = w
	}
	version := ""
	for _, w := range workers {
		var err error
		if version, err = w.Ready(); err != nil {
			return HandOffs{}, "", w.Explain(ctx, err)
		}
	}
	first, err := rig.Monotonic()
	if err != nil {
		return HandOffs{}, "", err
	}
	for _, w := range workers {
		if _, err := io.WriteString(w.Stdin, "\n"); err != nil {
			return HandOffs{}, "", w.Explain(ctx, err)
		}
	}
	last, err := rig.Monotonic()
	if err != nil {
		return HandOffs{}, "", err
	}
	perProcess := make([][]Grant, len(workers))
	var g errgroup.Group
	for i, w := range workers {
		g.Go(func() (err error) {
			if perProcess[i], err = grantsOf(w, i, b.Waiters); err != nil {
				return w.Explain(ctx, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return HandOffs{}, "", err
	}
	var all []Grant
	for _, grants := range perProcess {
		all = append(all, grants...)
	}
	during := Contention{
		Processes: b.Processes, Waiters: b.Waiters,
		From: last + rig.WarmUp.Nanoseconds(), To: first + (rig.WarmUp + b.Duration).Nanoseconds(),
	}
	return Summarize(during, all), version, nil
}

// grants reads the worker's lines and waits for its end.
func grantsOf(w *rig.Worker, process, waiters int) ([]Grant, error) {
	var grants []Grant
	lines := bufio.NewScanner(w.Stdout)
	for lines.Scan() {
		g, err := ParseGrant(process, lines.Text())
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
	w.Ended = true
	return grants, w.Cmd.Wait()
}

func (r ContestReport) Print(w io.Writer, out term.Output) error {
	if !out.IsTable() {
		return out.Document(w, r)
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
			rig.Millis(m.HandOff.P50), rig.Millis(m.HandOff.P99), rig.Millis(m.Between.P50), rig.Millis(m.Between.P99),
			m.LongestWait.Seconds(), share(m.PerProcess), share(m.PerWaiter), m.Overlaps)
	}
	return tw.Flush()
}

func share(s stats.Spread) string { return fmt.Sprintf("%d/%d %.2f", s.Fewest, s.Most, s.Ratio) }
