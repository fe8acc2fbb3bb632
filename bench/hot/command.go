// Package hot measures how one busy repository affects the others.
package hot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/cli/term"
)

// bench holds the flags.
type bench struct {
	Load
	events, repos, rounds int
	peers                 []string
	contestants           []rig.Contestant
}

// NewCommand returns the command bench hot.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.RedisCommand(std, &cobra.Command{
		Use:   "hot",
		Short: "Measure what one busy repository costs all the others",
		Long: "Queue events, half of them to one repository, let several processes work on them, and print how long\n" +
			"the events of the other repositories took; then the same without the busy one. The work is a pause\n" +
			"under the repository's lock. Peers are commands that speak the same worker protocol, see\n" +
			"bench/README.md; rounds of all contestants alternate. It fails if an event was lost or done twice, or if\n" +
			"two workers worked on one repository at once.\n\n" +
			"Without --redis it starts a private redis-server.",
		Example: "  bin/bench hot\n" +
			"  bin/bench hot --peer 'redsync=bin/peers stock' --peer 'bullmq=node bench/peers/bullmq/index.mjs' --json",
	}, b.check, b.run)
	flags := cmd.Flags()
	flags.IntVar(&b.events, "events", 400, "number of events, half of them to one repository")
	flags.IntVar(&b.repos, "repos", 100, "number of repositories, including the busy one")
	flags.IntVar(&b.Processes, "processes", 2, "number of worker processes")
	flags.IntVar(&b.Slots, "slots", 5, "number of events that each process works on concurrently")
	flags.DurationVar(&b.Work, "work", 20*time.Millisecond, "how long the work on an event takes, in whole milliseconds")
	flags.DurationVar(&b.Limit, "limit", 2*time.Minute, "how long a run may take; events not settled by then are lost")
	flags.IntVar(&b.rounds, "rounds", 5, "number of rounds; the figures are medians")
	flags.StringArrayVar(&b.peers, "peer", nil, "another contestant, as `NAME=COMMAND …`; may be repeated")
	return cmd
}

func (b *bench) check(func(string) bool) (err error) {
	switch {
	case b.Processes < 1 || b.Slots < 1 || b.rounds < 1:
		return errors.New("--processes, --slots and --rounds: want at least 1 of each")
	case b.repos < 2 || b.events < 2:
		return errors.New("--repos and --events: want at least 2 of each, because one is the busy one's")
	case b.Work < time.Millisecond || b.Work%time.Millisecond != 0:
		return fmt.Errorf("--work is %v; want whole milliseconds", b.Work)
	case b.Limit <= 0:
		return errors.New("--limit: want a positive duration")
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
	Name    string  `json:"name"`
	Version string  `json:"version,omitempty"`
	Summary Summary `json:"summary"`
	Rounds  []Round `json:"rounds"`
}

// Report compares the contestants.
type Report struct {
	Machine     rig.Machine   `json:"machine"`
	Events      int           `json:"events"`
	Repos       int           `json:"repos"`
	Processes   int           `json:"processes"`
	Slots       int           `json:"slots"`
	Work        time.Duration `json:"work_ns"`
	Contestants []Result      `json:"contestants"`
}

func (b *bench) run(ctx context.Context, env *rig.Env, server *rig.Redis) (rig.Report, error) {
	prefix := rig.NewNamespace()
	tasks := makeTasks(b.events, b.repos)
	report := Report{
		Machine: server.Machine(), Events: b.events, Repos: b.repos, Processes: b.Processes, Slots: b.Slots, Work: b.Work,
		Contestants: make([]Result, len(b.contestants)),
	}
	err := env.Alternate(b.rounds, rig.Names(b.contestants), func(round, i int) (err error) {
		result := &report.Contestants[i]
		result.Name = b.contestants[i].Name
		var r Round
		play := func(name string, tasks []Task) (figures Figures, err error) {
			figures, result.Version, err = b.Play(ctx, env, server, b.contestants[i], tasks, fmt.Sprintf("%s%d:%d:%s:", prefix, round, i, name))
			return figures, err
		}
		if r.Hot, err = play("hot", tasks); err != nil {
			return err
		}
		if r.Calm, err = play("calm", withoutHot(tasks)); err != nil {
			return err
		}
		result.Rounds = append(result.Rounds, r)
		result.Summary = summarize(result.Rounds)
		return nil
	})
	return report, err
}

// Verdict returns an error if a contestant lost or doubled an event.
func (r Report) Verdict() error {
	var errs []error
	for _, c := range r.Contestants {
		if err := c.Summary.Err(); err != nil {
			errs = append(errs, fmt.Errorf("bench %s: %w", c.Name, err))
		}
	}
	return errors.Join(errs...)
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s\n%d events over %d repositories, half of them to one; %v of work; %d processes × %d slots; rounds: %d, medians (lowest–highest)\n\n",
		r.Machine, r.Events, r.Repos, r.Work, r.Processes, r.Slots, len(r.Contestants[0].Rounds))
	tw := rig.NewTable(w)
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
