package hot

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

	"lockstep/bench/rig"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
)

// Bench is what the flags of bench hot say.
type Bench struct {
	redis            string
	events, repos    int
	Processes, Slots int
	Work, Limit      time.Duration
	Rounds           int
	Peers            []string
	out              term.Output
}

func NewCommand(std term.Streams) *cobra.Command {
	var b Bench
	cmd := &cobra.Command{
		Use:   "hot",
		Short: "Measure what one busy repository costs all the others",
		Long: "Queue events, half of them to one repository, let several processes work on them, and print how long\n" +
			"the events of the other repositories took; and the same without the busy one. The work is a pause, done\n" +
			"under the repository's lock. Peers are commands that speak the same worker protocol, see\n" +
			"bench/README.md; rounds of all contestants alternate. It fails if an event was lost or done twice, or if\n" +
			"two were ever worked on at once on one repository.\n\n" +
			"Without --redis it starts a private redis-server.",
		Example: "  go run ./bench hot\n" +
			"  go run ./bench hot --peer 'redsync=bin/peers stock' --peer 'bullmq=node bench/peers/bullmq/index.mjs' --json",
		Args: term.WrongUse(term.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			contestants, err := b.check()
			if err != nil {
				return term.UsageError(err)
			}
			app.SilenceRedis()
			server, err := rig.OpenRedis(cmd.Context(), b.redis)
			if err != nil {
				return err
			}
			defer server.Close()
			return b.Run(cmd.Context(), std, server, contestants)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&b.redis, "redis", "", "`URL` of the Redis to measure on (default: a private redis-server)")
	flags.IntVar(&b.events, "events", 400, "how many events, half of them to one repository")
	flags.IntVar(&b.repos, "repos", 100, "how many repositories, the busy one included")
	flags.IntVar(&b.Processes, "processes", 2, "how many processes work")
	flags.IntVar(&b.Slots, "slots", 5, "how many events each process works on at once")
	flags.DurationVar(&b.Work, "work", 20*time.Millisecond, "how long the work on an event takes; whole milliseconds")
	flags.DurationVar(&b.Limit, "limit", 2*time.Minute, "how long a run may take; what is not settled by then is lost")
	flags.IntVar(&b.Rounds, "rounds", 5, "how many rounds; the figures are medians")
	flags.StringArrayVar(&b.Peers, "peer", nil, "another contestant, as `NAME=COMMAND …`; may be repeated")
	b.out.Add(cmd)
	return cmd
}

// check returns who takes part: this program first.
func (b *Bench) check() ([]rig.Contestant, error) {
	switch {
	case b.Processes < 1 || b.Slots < 1 || b.Rounds < 1:
		return nil, errors.New("--processes, --slots and --rounds: want at least 1 of each")
	case b.repos < 2 || b.events < 2:
		return nil, errors.New("--repos and --events: want at least 2 of each, for one is the busy one's")
	case b.Work < time.Millisecond || b.Work%time.Millisecond != 0:
		return nil, fmt.Errorf("--work is %v: want whole milliseconds", b.Work)
	case b.Limit <= 0:
		return nil, errors.New("--limit: want a positive duration")
	}
	return b.Contestants()
}

// Contestants are this program and the peers.
func (b *Bench) Contestants() ([]rig.Contestant, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	contestants := []rig.Contestant{{Name: "lockstep", Argv: []string{path, "hot-worker"}}}
	for _, flag := range b.Peers {
		peer, err := rig.ParsePeer(flag)
		if err != nil {
			return nil, err
		}
		contestants = append(contestants, peer)
	}
	return contestants, nil
}

// HotResult is what one contestant did.
type HotResult struct {
	Name    string     `json:"name"`
	Version string     `json:"version,omitempty"`
	Summary HotSummary `json:"summary"`
	Rounds  []HotRound `json:"rounds"`
}

// HotReport is the whole of it.
type HotReport struct {
	Machine     rig.Machine   `json:"machine"`
	Events      int           `json:"events"`
	Repos       int           `json:"repos"`
	Processes   int           `json:"processes"`
	Slots       int           `json:"slots"`
	Work        time.Duration `json:"work_ns"`
	Contestants []HotResult   `json:"contestants"`
}

// Run lets all contestants work in turn, several times over.
func (b *Bench) Run(ctx context.Context, std term.Streams, server *rig.Redis, contestants []rig.Contestant) error {
	// A prefix of its own: nobody who uses this Redis knows it, nor does an earlier run.
	prefix := "lockstep-bench:{" + uuid.NewString() + "}:"
	tasks := HotTasks(b.events, b.repos)
	report := HotReport{
		Machine: server.Machine(), Events: b.events, Repos: b.repos, Processes: b.Processes, Slots: b.Slots, Work: b.Work,
		Contestants: make([]HotResult, len(contestants)),
	}
	for round := range b.Rounds {
		for i, who := range contestants {
			fmt.Fprintf(std.Stderr, "round %d of %d: %s\n", round+1, b.Rounds, who.Name)
			result := &report.Contestants[i]
			result.Name = who.Name
			var r HotRound
			for _, turn := range []struct {
				name    string
				tasks   []Task
				figures *HotFigures
			}{{"hot", tasks, &r.Hot}, {"calm", Cold(tasks), &r.Calm}} {
				var err error
				// No run meets what another has left behind.
				run := Run{Bench: b, Who: who, Tasks: turn.tasks, Server: server, Prefix: fmt.Sprintf("%s%d:%d:%s:", prefix, round, i, turn.name)}
				if *turn.figures, result.Version, err = run.Play(ctx, std); err != nil {
					return fmt.Errorf("bench %s: %w", who.Name, err)
				}
			}
			result.Rounds = append(result.Rounds, r)
			result.Summary = SummarizeHot(result.Rounds)
		}
	}
	if err := report.Print(std.Stdout, b.out); err != nil {
		return err
	}
	return report.Verdict()
}

// Verdict is an error if any contestant lost or doubled anything.
func (r HotReport) Verdict() error {
	var errs []error
	for _, c := range r.Contestants {
		if err := c.Summary.Err(); err != nil {
			errs = append(errs, fmt.Errorf("bench %s: %w", c.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (r HotReport) Print(w io.Writer, out term.Output) error {
	if !out.IsTable() {
		return out.Document(w, r)
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
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t\n", name, rig.SecondsRange(s.P50), rig.SecondsRange(s.P99), rig.SecondsRange(s.AllDone), s.Lost, s.Doubled, s.Overlaps)
		fmt.Fprintf(tw, "without the hot one\t%s\t%s\t%s\t\t\t\t\n", rig.SecondsRange(s.CalmP50), rig.SecondsRange(s.CalmP99), rig.SecondsRange(s.CalmAllDone))
		fmt.Fprintf(tw, "ratio\t%s\t%s\t\t\t\t\t\n", rig.RatioRange(s.RatioP50), rig.RatioRange(s.RatioP99))
	}
	return tw.Flush()
}
