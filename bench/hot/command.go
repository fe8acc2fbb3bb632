// Package hot measures what one repository, host or entry costs all others.
package hot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
)

// bench holds the flags.
type bench struct {
	loop
	hots           []int
	rounds         int
	delay          time.Duration
	serve          bool
	redis, against string
	peers          []string
	contestants    []rig.Contestant // of the worker protocol
	names          []string
	measure        func(ctx context.Context, i, hot int, prefix string) (Figures, string, error)
	remote         *rig.Remote
	fast, slow     *rig.Host
	env            *rig.Env
	server         *rig.Redis
}

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
			"each request after --delay.\n\n" +
			"The subcommands measure other obstacles: hosts that hang or limit, a Redis that hangs, and huge entries.",
		Example: "  bin/bench hot --peer 'hashed=bin/peers hashed' --peer 'groupmq=node bench/peers/node/groupmq.mjs'\n" +
			"  bin/bench hot --against bin/lockstep-old\n" +
			"  bin/bench hot hung --duration 10m",
	}, b.check, b.run)
	rig.RedisFlag(cmd, &b.redis)
	rig.AgainstFlag(cmd, &b.against)
	flags := cmd.Flags()
	flags.BoolVar(&b.serve, "serve", false, "measure lockstep serve with Git instead of workers that pause")
	flags.IntSliceVar(&b.hots, "hot", []int{1, 16}, "numbers of hot repositories; each is measured, and none")
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
	cmd.AddCommand(newCaseCommands(std)...)
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
	case b.serve && (len(b.peers) > 0 || b.redis != ""):
		return errors.New("--peer and --redis exclude --serve and --against")
	case b.Work < time.Millisecond || b.Work%time.Millisecond != 0:
		return fmt.Errorf("--work is %v; want whole milliseconds", b.Work)
	case slices.ContainsFunc(b.hots, func(n int) bool { return n < 1 || n > 99 }):
		return errors.New("--hot: want numbers from 1 to 99")
	}
	b.hots = slices.Concat([]int{0}, b.hots)
	b.contestants, err = Contestants(b.peers)
	return errors.Join(err, atLeastOne("--backlog, --repos, --clients, --processes, --slots, --rounds, --delay, --duration and --limit", int64(b.backlog),
		int64(b.repos), int64(b.clients), int64(b.Processes), int64(b.Slots), int64(b.rounds), int64(b.delay), int64(b.duration), int64(b.Limit)))
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
	Contestants []Result `json:"contestants"`
	own         int      // the first contestants, which are Lockstep
}

func (b *bench) run(ctx context.Context, env *rig.Env) (_ rig.Report, err error) {
	b.env = env
	if b.server, err = env.OpenRedis(ctx, b.redis); err != nil {
		return nil, err
	}
	report := Report{own: 1, Setup: fmt.Sprintf("%d clients with an event for a cold repository each, hot repositories with %d queued events each; %%s; %d processes × %d slots; rounds: %d of %v, medians (lowest–highest)",
		b.clients, b.backlog, b.Processes, b.Slots, b.rounds, b.duration)}
	if b.serve {
		report.Setup = fmt.Sprintf(report.Setup, fmt.Sprintf("lockstep serve, a first sync for each cold event, hot remote %v away", b.delay))
		if err := b.prepareServed(ctx); err != nil {
			return nil, err
		}
		report.own = len(b.names)
	} else {
		report.Setup = fmt.Sprintf(report.Setup, fmt.Sprintf("%v of work under the repository's lock", b.Work))
		b.names = rig.Names(b.contestants)
		b.measure = func(ctx context.Context, i, hot int, prefix string) (Figures, string, error) {
			l := b.loop
			l.hot = hot
			return l.play(ctx, env, b.server, b.contestants[i], prefix)
		}
	}
	report.Contestants = make([]Result, len(b.names))
	prefix := rig.NewNamespace()
	err = env.Alternate(b.rounds, b.names, func(round, i int) (err error) {
		result := &report.Contestants[i]
		if result.Name = b.names[i]; result.Rows == nil {
			result.Rows = make([]Row, len(b.hots))
		}
		for n, hot := range b.hots {
			var f Figures
			if f, result.Version, err = b.measure(ctx, i, hot, fmt.Sprintf("%s%d:%d:%d:", prefix, round, i, hot)); err != nil {
				return fmt.Errorf("%d hot: %w", hot, err)
			}
			row := &result.Rows[n]
			row.Hot, row.Rounds = hot, append(row.Rounds, f)
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

// Verdict returns an error if Lockstep lost or doubled an event.
func (r Report) Verdict() error {
	var errs []error
	for _, c := range r.Contestants[:r.own] {
		for _, row := range c.Rows {
			if err := row.err(); err != nil {
				errs = append(errs, fmt.Errorf("bench %s, %d hot: %w", c.Name, row.Hot, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s\n\n", r.Setup)
	tw := rig.NewTable(w)
	fmt.Fprintf(tw, "\thot\tcold p50, s\tcold p99, s\tp50 to calm\tp99 to calm\tp99 to %s\tcold\thot\tlost\tdoubled\ttwo at once\tlock timeouts\t\n", r.Contestants[0].Name)
	for i, c := range r.Contestants {
		name := strings.TrimSpace(c.Name + " " + c.Version)
		for _, row := range c.Rows {
			var sum Figures
			for _, f := range row.Rounds {
				sum.Events, sum.Hot, sum.Lost = sum.Events+f.Events, sum.Hot+f.Hot, sum.Lost+f.Lost
				sum.Doubled, sum.Overlaps, sum.Waits = sum.Doubled+f.Doubled, sum.Overlaps+f.Overlaps, sum.Waits+f.Waits
			}
			toFirst := fmt.Sprintf("%.2f", row.ToFirst)
			switch {
			case i == 0:
				toFirst = ""
			case row.ToFirst < 1:
				toFirst += ", better"
			}
			fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t\n", name, row.Hot, rig.SecondsRange(row.P50), rig.SecondsRange(row.P99),
				rig.RatioRange(row.RatioP50), rig.RatioRange(row.RatioP99), toFirst, sum.Events, sum.Hot, sum.Lost, sum.Doubled, sum.Overlaps, sum.Waits)
			name = ""
		}
	}
	return tw.Flush()
}
