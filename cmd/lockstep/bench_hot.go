package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"lockstep/bench/hot"
)

// hotBench is what the flags of lockstep bench hot say.
type hotBench struct {
	redis            string
	events, repos    int
	processes, slots int
	work, limit      time.Duration
	rounds           int
	peers            []string
	out              output
}

func newBenchHotCommand(std streams) *cobra.Command {
	var b hotBench
	cmd := &cobra.Command{
		Use:   "hot",
		Short: "Measure what one busy repository costs all the others",
		Long: "Queue events, half of them to one repository, let several processes work on them, and print how long\n" +
			"the events of the other repositories took; and the same without the busy one. The work is a pause, done\n" +
			"under the repository's lock. Peers are commands that speak the same worker protocol, see\n" +
			"bench/README.md; rounds of all contestants alternate. It fails if an event was lost or done twice, or if\n" +
			"two were ever worked on at once on one repository.\n\n" +
			"Without --redis it starts a private redis-server.",
		Example: "  lockstep bench hot\n" +
			"  lockstep bench hot --peer 'redsync=bin/peers stock' --peer 'bullmq=node bench/peers/bullmq/index.mjs' --json",
		Args: wrongUse(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			contestants, err := b.check()
			if err != nil {
				return usageError(err)
			}
			silenceRedis()
			server, err := openBenchRedis(cmd.Context(), b.redis)
			if err != nil {
				return err
			}
			defer server.Close()
			return b.run(cmd.Context(), std, server, contestants)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&b.redis, "redis", "", "`URL` of the Redis to measure on (default: a private redis-server)")
	flags.IntVar(&b.events, "events", 400, "how many events, half of them to one repository")
	flags.IntVar(&b.repos, "repos", 100, "how many repositories, the busy one included")
	flags.IntVar(&b.processes, "processes", 2, "how many processes work")
	flags.IntVar(&b.slots, "slots", 5, "how many events each process works on at once")
	flags.DurationVar(&b.work, "work", 20*time.Millisecond, "how long the work on an event takes; whole milliseconds")
	flags.DurationVar(&b.limit, "limit", 2*time.Minute, "how long a run may take; what is not settled by then is lost")
	flags.IntVar(&b.rounds, "rounds", 5, "how many rounds; the figures are medians")
	flags.StringArrayVar(&b.peers, "peer", nil, "another contestant, as `NAME=COMMAND …`; may be repeated")
	b.out.add(cmd)
	return cmd
}

// check returns who takes part: this program first.
func (b *hotBench) check() ([]contestant, error) {
	switch {
	case b.processes < 1 || b.slots < 1 || b.rounds < 1:
		return nil, errors.New("--processes, --slots and --rounds: want at least 1 of each")
	case b.repos < 2 || b.events < 2:
		return nil, errors.New("--repos and --events: want at least 2 of each, for one is the busy one's")
	case b.work < time.Millisecond || b.work%time.Millisecond != 0:
		return nil, fmt.Errorf("--work is %v: want whole milliseconds", b.work)
	case b.limit <= 0:
		return nil, errors.New("--limit: want a positive duration")
	}
	return b.contestants()
}

// contestants are this program and the peers.
func (b *hotBench) contestants() ([]contestant, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	contestants := []contestant{{name: "lockstep", argv: []string{path, "hot-worker"}}}
	for _, flag := range b.peers {
		peer, err := parsePeer(flag)
		if err != nil {
			return nil, err
		}
		contestants = append(contestants, peer)
	}
	return contestants, nil
}

// hotResult is what one contestant did.
type hotResult struct {
	Name    string         `json:"name"`
	Version string         `json:"version,omitempty"`
	Summary hot.HotSummary `json:"summary"`
	Rounds  []hot.HotRound `json:"rounds"`
}

// hotReport is the whole of it.
type hotReport struct {
	Machine     benchMachine  `json:"machine"`
	Events      int           `json:"events"`
	Repos       int           `json:"repos"`
	Processes   int           `json:"processes"`
	Slots       int           `json:"slots"`
	Work        time.Duration `json:"work_ns"`
	Contestants []hotResult   `json:"contestants"`
}

// run lets all contestants work in turn, several times over.
func (b *hotBench) run(ctx context.Context, std streams, server *benchRedis, contestants []contestant) error {
	// A prefix of its own: nobody who uses this Redis knows it, nor does an earlier run.
	prefix := "lockstep-bench:{" + uuid.NewString() + "}:"
	tasks := hot.HotTasks(b.events, b.repos)
	report := hotReport{
		Machine: server.machine(), Events: b.events, Repos: b.repos, Processes: b.processes, Slots: b.slots, Work: b.work,
		Contestants: make([]hotResult, len(contestants)),
	}
	for round := range b.rounds {
		for i, who := range contestants {
			fmt.Fprintf(std.stderr, "round %d of %d: %s\n", round+1, b.rounds, who.name)
			result := &report.Contestants[i]
			result.Name = who.name
			var r hot.HotRound
			for _, turn := range []struct {
				name    string
				tasks   []hot.Task
				figures *hot.HotFigures
			}{{"hot", tasks, &r.Hot}, {"calm", hot.Cold(tasks), &r.Calm}} {
				var err error
				// No run meets what another has left behind.
				run := hotRun{hotBench: b, who: who, tasks: turn.tasks, server: server, prefix: fmt.Sprintf("%s%d:%d:%s:", prefix, round, i, turn.name)}
				if *turn.figures, result.Version, err = run.play(ctx, std); err != nil {
					return fmt.Errorf("bench %s: %w", who.name, err)
				}
			}
			result.Rounds = append(result.Rounds, r)
			result.Summary = hot.SummarizeHot(result.Rounds)
		}
	}
	if err := report.print(std.stdout, b.out); err != nil {
		return err
	}
	return report.verdict()
}

// verdict is an error if any contestant lost or doubled anything.
func (r hotReport) verdict() error {
	var errs []error
	for _, c := range r.Contestants {
		if err := c.Summary.Err(); err != nil {
			errs = append(errs, fmt.Errorf("bench %s: %w", c.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (r hotReport) print(w io.Writer, out output) error {
	if !out.isTable() {
		return out.document(w, r)
	}
	rounds := 0
	for _, c := range r.Contestants {
		rounds = len(c.Rounds)
	}
	fmt.Fprintf(w, "%s\n%d events over %d repositories, half of them to one; %v of work; %d processes × %d slots; rounds: %d, medians (lowest–highest)\n\n",
		r.Machine, r.Events, r.Repos, r.Work, r.Processes, r.Slots, rounds)
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\tcold p50, s\tcold p99, s\tall done, s\tlost\tdoubled\ttwo at once\t")
	for _, c := range r.Contestants {
		s := c.Summary
		name := strings.TrimSpace(c.Name + " " + c.Version)
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t\n", name, secondsRange(s.P50), secondsRange(s.P99), secondsRange(s.AllDone), s.Lost, s.Doubled, s.Overlaps)
		fmt.Fprintf(tw, "without the hot one\t%s\t%s\t%s\t\t\t\t\n", secondsRange(s.CalmP50), secondsRange(s.CalmP99), secondsRange(s.CalmAllDone))
		fmt.Fprintf(tw, "ratio\t%s\t%s\t\t\t\t\t\n", ratioRange(s.RatioP50), ratioRange(s.RatioP99))
	}
	return tw.Flush()
}
