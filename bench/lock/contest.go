package lock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"lockstep/bench/rig"
	"lockstep/internal/stats"
	"lockstep/internal/term"
)

// Result has the figures of one contestant.
type Result struct {
	Name    string     `json:"name"`
	Version string     `json:"version,omitempty"`
	Median  HandOffs   `json:"median"`
	Rounds  []HandOffs `json:"rounds"`
}

// Report compares the contestants.
type Report struct {
	Processes   int           `json:"processes"`
	Waiters     int           `json:"waiters"`
	Hold        time.Duration `json:"hold_ns"`
	Duration    time.Duration `json:"duration_ns"`
	Contestants []Result      `json:"contestants"`
}

// runContest runs the contestants one after another.
func (b *bench) runContest(ctx context.Context, env *rig.Env, server *rig.Redis, key string) (rig.Report, error) {
	contestants, err := rig.Contestants("lock-worker", b.peers)
	if err != nil {
		return nil, term.UsageError(err)
	}
	report := Report{Processes: b.processes, Waiters: b.waiters, Hold: b.hold, Duration: b.duration}
	report.Contestants = make([]Result, len(contestants))
	err = env.Alternate(b.rounds, rig.Names(contestants), func(round, i int) error {
		figures, version, err := b.contend(ctx, env, server, contestants[i], fmt.Sprintf("%s:%d:%d", key, round, i))
		if err != nil {
			return err
		}
		result := &report.Contestants[i]
		result.Name, result.Version = contestants[i].Name, version
		result.Rounds = append(result.Rounds, figures)
		result.Median = medianHandOffs(result.Rounds)
		return nil
	})
	return report, err
}

// Verdict returns an error if a contestant's lock ever had two holders.
func (r Report) Verdict() error {
	var errs []error
	for _, c := range r.Contestants {
		if c.Median.Overlaps > 0 {
			errs = append(errs, fmt.Errorf("bench %s: the key had two holders at once, %d times", c.Name, c.Median.Overlaps))
		}
	}
	return errors.Join(errs...)
}

// contend runs one round of one contestant, and returns its figures and version.
func (b *bench) contend(ctx context.Context, env *rig.Env, server *rig.Redis, c rig.Contestant, key string) (HandOffs, string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, rig.WarmUp+b.duration+rig.RoundGrace, errors.New("the processes did not end in time"))
	defer cancel()
	workers, version, err := env.StartWorkers(ctx, b.processes, c, "--redis", server.URL, "--key", key, "--waiters", strconv.Itoa(b.waiters),
		"--hold", b.hold.String(), "--duration", (rig.WarmUp + b.duration).String())
	defer workers.Kill()
	if err != nil {
		return HandOffs{}, "", err
	}
	told, err := workers.Go(ctx)
	if err != nil {
		return HandOffs{}, "", err
	}
	var grants []grant
	err = workers.EachLine(ctx, func(process int, line string) error {
		g, err := parseGrant(process, line)
		if err == nil && g.Waiter >= b.waiters {
			err = fmt.Errorf("grant %q: there are %d waiters", line, b.waiters)
		}
		grants = append(grants, g)
		return err
	})
	if err != nil {
		return HandOffs{}, "", err
	}
	during := contention{
		Processes: b.processes, Waiters: b.waiters,
		Span: rig.Span{From: told.To + rig.WarmUp.Nanoseconds(), To: told.From + (rig.WarmUp + b.duration).Nanoseconds()},
	}
	return summarize(during, grants), version, nil
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "%d processes × %d waiters, hold %v, %v; rounds: %d, the one with the median grants/s (longest wait, overlaps: of all)\n\n",
		r.Processes, r.Waiters, r.Hold, r.Duration, len(r.Contestants[0].Rounds))
	tw := rig.NewTable(w)
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
