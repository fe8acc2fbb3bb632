// Package hot measures what one repository, host or entry costs all others.
package hot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/term"
)

// bench holds the flags.
type bench struct {
	loop
	rounds      int
	delay       time.Duration
	serve       bool
	beside      []string
	obstacles   []obstacle
	against     string
	peers       []string
	contestants []rig.Contestant // of the worker protocol
}

// obstacle is what may delay other work: a number of hot repositories, or one of the names below.
type obstacle struct {
	name string
	hot  int
}

const (
	besideHung      = "hung"
	besideHungHosts = "hung-hosts"
	besideLimited   = "limited"
	besideRedisHang = "redishang"
	besideHuge      = "huge"
)

// NewCommand returns the command bench hot.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.Command(std, &cobra.Command{
		Use:   "hot",
		Short: "Measure what hot repositories cost all the others",
		Long: "Let clients queue events for cold repositories in a closed loop, each when its last one is settled, and print how\n" +
			"long they took: without hot repositories, and beside some that always have events queued. The work is a pause\n" +
			"under the repository's lock. Peers are commands that speak the same worker protocol, see bench/README.md;\n" +
			"rounds of all contestants alternate. It fails if Lockstep lost an event or did it twice, or if two workers\n" +
			"worked on one repository at once.\n\n" +
			"With --serve and --against the contestants are processes of lockstep serve instead: each cold event is the first\n" +
			"sync of a small repository, and the hot ones have --backlog branches queued each on another host, which answers\n" +
			"each request after --delay. Other obstacles are then possible, too:\n\n" +
			"  hung        100 repositories on a host that accepts connections and never answers\n" +
			"  hung-hosts  300 repositories on as many such hosts, which are ports of one address\n" +
			"  limited     10,000 repositories on a host that answers 429 with Retry-After: 60\n" +
			"  redishang   Redis does not answer for --duration and two seconds\n" +
			"  huge        50 entries of 5 MB in the stream, which cannot be decoded",
		Example: "  bin/bench hot --peer 'hashed=bin/peers hashed' --peer 'groupmq=node bench/peers/node/groupmq.mjs'\n" +
			"  bin/bench hot --against bin/lockstep-old\n" +
			"  bin/bench hot --serve --beside hung,hung-hosts,limited --duration 60s --rounds 1",
	}, b.check, b.run)
	rig.AgainstFlag(cmd, &b.against)
	flags := cmd.Flags()
	flags.BoolVar(&b.serve, "serve", false, "measure lockstep serve with Git instead of workers that pause")
	flags.StringSliceVar(&b.beside, "beside", []string{"1", "16"}, "numbers of hot repositories, or with --serve other obstacles; each is measured, and none")
	flags.IntVar(&b.backlog, "backlog", 10, "number of events queued to each hot repository (default with --serve: 150)")
	flags.IntVar(&b.repos, "repos", 100, "number of cold repositories")
	flags.IntVar(&b.clients, "clients", 4, "number of clients with an event for a cold repository each")
	flags.IntVar(&b.Processes, "processes", 2, "number of worker processes")
	flags.IntVar(&b.Slots, "slots", 5, "number of events that each process works on concurrently")
	flags.DurationVar(&b.Work, "work", 20*time.Millisecond, "how long the work on an event takes, in whole milliseconds")
	flags.DurationVar(&b.delay, "delay", time.Second, "with --serve: delay of each answer to hot repositories")
	flags.DurationVar(&b.duration, "duration", 10*time.Second, "how long clients queue events in a run")
	flags.DurationVar(&b.Limit, "limit", 2*time.Minute, "how long a run may take; events not settled by then are lost")
	flags.IntVar(&b.rounds, "rounds", 3, "number of rounds; the figures are medians")
	flags.StringArrayVar(&b.peers, "peer", nil, "another contestant, as `NAME=COMMAND …`; may be repeated")
	return cmd
}

func (b *bench) check(given func(string) bool) (err error) {
	if b.against != "" {
		b.serve = true
	}
	if b.serve && !given("backlog") {
		b.backlog = 150
	}
	switch {
	case b.serve && len(b.peers) > 0:
		return errors.New("--peer excludes --serve and --against")
	case b.Work < time.Millisecond || b.Work%time.Millisecond != 0:
		return fmt.Errorf("--work is %v; want whole milliseconds", b.Work)
	case min(b.backlog, b.repos, b.clients, b.Processes, b.Slots, b.rounds) < 1 || min(b.delay, b.duration, b.Limit) <= 0:
		return errors.New("--backlog, --repos, --clients, --processes, --slots, --rounds, --delay, --duration and --limit: want a positive value for each")
	}
	b.obstacles = []obstacle{{name: "none"}}
	for _, name := range b.beside {
		hot, err := strconv.Atoi(name)
		other := b.serve && slices.Contains([]string{besideHung, besideHungHosts, besideLimited, besideRedisHang, besideHuge}, name)
		if !other && (err != nil || hot < 1 || hot > 99) {
			return fmt.Errorf("--beside has %q; want a number from 1 to 99, or with --serve hung, hung-hosts, limited, redishang or huge", name)
		}
		if !other {
			name = fmt.Sprint(hot, " hot")
		}
		b.obstacles = append(b.obstacles, obstacle{name, hot})
	}
	b.contestants, err = Contestants(b.peers)
	return err
}

// Contestants returns this program and the peers.
func Contestants(peers []string) ([]rig.Contestant, error) {
	return rig.Contestants("hot-worker", peers)
}

// Result has the figures of one contestant.
type Result struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Rows    []Row  `json:"rows"`
}

// Report compares the contestants.
type Report struct {
	Setup       string   `json:"setup"`
	Served      bool     `json:"served"`
	Contestants []Result `json:"contestants"`
	own         int      // the first contestants, which are Lockstep
}

// measure measures a contestant beside an obstacle.
type measure func(ctx context.Context, contestant int, o obstacle, prefix string) (f Figures, version string, err error)

func (b *bench) run(ctx context.Context, env *rig.Env) (rig.Report, error) {
	names, work, measure, err := b.prepare(ctx, env)
	if err != nil {
		return nil, err
	}
	report := Report{Served: b.serve, Contestants: make([]Result, len(names)), own: 1, Setup: fmt.Sprintf(
		"%d clients with an event for a cold repository each, %d events queued to each hot one; %s; %d processes × %d slots; rounds: %d of %v, medians (lowest–highest)",
		b.clients, b.backlog, work, b.Processes, b.Slots, b.rounds, b.duration)}
	if b.serve {
		report.own = len(names)
	}
	prefix := rig.NewNamespace()
	err = env.Alternate(b.rounds, names, func(round, i int) (err error) {
		result := &report.Contestants[i]
		if result.Name = names[i]; result.Rows == nil {
			result.Rows = make([]Row, len(b.obstacles))
		}
		for n, o := range b.obstacles {
			var f Figures
			if f, result.Version, err = measure(ctx, i, o, fmt.Sprintf("%s%d:%d:%d:", prefix, round, i, n)); err != nil {
				return fmt.Errorf("beside %s: %w", o.name, err)
			}
			row := &result.Rows[n]
			row.Beside, row.Rounds = o.name, append(row.Rounds, f)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, result := range report.Contestants {
		for n := range result.Rows {
			result.Rows[n].summarize(result.Rows[0], report.Contestants[0].Rows[n])
		}
	}
	return report, nil
}

// prepare returns the names of the contestants, what their work is, and how to measure it.
func (b *bench) prepare(ctx context.Context, env *rig.Env) (names []string, work string, _ measure, err error) {
	if b.serve {
		s, err := b.openServed(ctx, env)
		if err != nil {
			return nil, "", nil, err
		}
		for _, side := range s.sides {
			names = append(names, side.Name)
		}
		return names, fmt.Sprintf("lockstep serve, a first sync for each cold event, hot remote %v away", b.delay),
			func(ctx context.Context, i int, o obstacle, _ string) (f Figures, _ string, err error) {
				f, err = s.play(ctx, s.sides[i], o)
				return f, "", err
			}, nil
	}
	server, err := env.OpenRedis(ctx)
	if err != nil {
		return nil, "", nil, err
	}
	return rig.Names(b.contestants), fmt.Sprintf("%v of work under the repository's lock", b.Work),
		func(ctx context.Context, i int, o obstacle, prefix string) (Figures, string, error) {
			l := b.loop
			l.hot = o.hot
			return l.play(ctx, env, server, b.contestants[i], prefix)
		}, nil
}

// Verdict returns an error if Lockstep lost or doubled an event.
func (r Report) Verdict() error {
	var errs []error
	for _, c := range r.Contestants[:r.own] {
		for _, row := range c.Rows {
			if err := row.err(); err != nil {
				errs = append(errs, fmt.Errorf("bench %s, beside %s: %w", c.Name, row.Beside, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s\n\n", r.Setup)
	tw := rig.NewTable(w)
	more := "lost\tdoubled\ttwo at once"
	if r.Served {
		more = "left\tdoubled\tattempts\tlock timeouts\trequests\tlongest PING, ms\tpeak, MB"
	}
	fmt.Fprintf(tw, "\tbeside\tcold p50, s\tcold p99, s\tmax, s\tp50 to calm\tp99 to calm\tp99 to %s\tcold\tothers\t%s\t\n", r.Contestants[0].Name, more)
	for i, c := range r.Contestants {
		name := strings.TrimSpace(c.Name + " " + c.Version)
		for _, row := range c.Rows {
			f := row.total()
			toFirst := fmt.Sprintf("%.2f", row.ToFirst)
			switch {
			case i == 0:
				toFirst = ""
			case f.Lost > 0 || f.Events == 0: // the percentiles lack what was lost
				toFirst = "–"
			case row.ToFirst < 1:
				toFirst += ", better"
			}
			more := fmt.Sprintf("%d\t%d\t%d", f.Lost, f.Doubled, f.Overlaps)
			if r.Served {
				more = fmt.Sprintf("%d\t%d\t%d\t%d\t%d\t%d\t%d", f.Left, f.Doubled, f.Attempts, f.Timeouts, f.Requests, f.Ping.Milliseconds(), f.Peak>>20)
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%.3f\t%s\t%s\t%s\t%d\t%d\t%s\t\n", name, row.Beside, rig.SecondsRange(row.P50), rig.SecondsRange(row.P99),
				f.Cold.Max.Seconds(), rig.RatioRange(row.RatioP50), rig.RatioRange(row.RatioP99), toFirst, f.Events, f.Beside, more)
			name = ""
		}
	}
	return tw.Flush()
}

// total adds up the counts of all rounds, and returns the longest and largest of the others.
func (r Row) total() (sum Figures) {
	for _, f := range r.Rounds {
		sum.Events, sum.Beside, sum.Left = sum.Events+f.Events, sum.Beside+f.Beside, sum.Left+f.Left
		sum.Lost, sum.Doubled, sum.Overlaps = sum.Lost+f.Lost, sum.Doubled+f.Doubled, sum.Overlaps+f.Overlaps
		sum.Attempts, sum.Timeouts = sum.Attempts+f.Attempts, sum.Timeouts+f.Timeouts
		sum.Requests, sum.Ping, sum.Peak = max(sum.Requests, f.Requests), max(sum.Ping, f.Ping), max(sum.Peak, f.Peak)
		sum.Cold.Max = max(sum.Cold.Max, f.Cold.Max)
	}
	return sum
}
