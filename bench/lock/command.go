// Package lock measures locks: the hand-offs of a contended lock, and whether a lock stays exclusive while faults are injected.
package lock

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/term"
)

// bench holds the flags.
type bench struct {
	processes, waiters, rounds int
	hold, duration             time.Duration
	peers                      []string
	faults                     bool
	lease                      time.Duration // with faults
}

// NewCommand returns the command bench lock.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.Command(std, &cobra.Command{
		Use:   "lock",
		Short: "Measure how a contended lock changes hands",
		Long: "Let several processes contend for one key and print the number of grants, how long the key took from one\n" +
			"holder to the next, the longest wait, and how evenly grants were shared. Peers are commands that speak the\n" +
			"same worker protocol, see bench/README.md; rounds of all contestants alternate. It fails if two waiters held\n" +
			"the key at once.\n\n" +
			"--faults kills and stops processes and restarts Redis, all at once, and judges by\n" +
			"the fences that reached a volume. It fails if one was accepted below a higher one or given out twice,\n" +
			"or if nobody got the key for longer than a lease and a second.",
		Example: "  bin/bench lock --peer 'redsync=bin/peers redsync' --peer 'etcd=bin/peers etcd'\n" +
			"  bin/bench lock --faults --duration 60s",
	}, b.check, b.run)
	flags := cmd.Flags()
	flags.IntVar(&b.processes, "processes", 8, "number of processes that contend")
	flags.IntVar(&b.waiters, "waiters", 4, "number of goroutines that contend in each process")
	flags.DurationVar(&b.hold, "hold", 2*time.Millisecond, "how long to hold each grant")
	flags.DurationVar(&b.duration, "duration", 10*time.Second, "how long to measure each contestant in each round")
	flags.IntVar(&b.rounds, "rounds", 3, "number of rounds; the figures are those of the one with the median grants/s")
	flags.StringArrayVar(&b.peers, "peer", nil, "another contestant, as `NAME=COMMAND …`; may be repeated")
	flags.BoolVar(&b.faults, "faults", false, "inject faults (changes the default to --processes 6)")
	flags.DurationVar(&b.lease, "lease", 2*time.Second, "how long a lease outlives its holder, with --faults")
	return cmd
}

func (b *bench) check(given func(flag string) bool) error {
	if b.faults && !given("processes") {
		b.processes = 6
	}
	switch {
	case b.faults && (b.processes < 3 || b.lease < 500*time.Millisecond || b.duration < 3*b.lease):
		return errors.New("--faults: want --processes of 3 or more, --lease of 500ms or more, and --duration of three leases or more")
	case b.faults && len(b.peers) > 0:
		return errors.New("--faults excludes --peer: it measures Lockstep")
	case b.processes < 1 || b.waiters < 1 || b.rounds < 1:
		return errors.New("--processes, --waiters and --rounds: want at least 1 of each")
	case b.hold < 0 || b.duration <= 0:
		return errors.New("--hold and --duration: want positive durations")
	}
	return nil
}

func (b *bench) run(ctx context.Context, env *rig.Env) (rig.Report, error) {
	if b.faults {
		return b.runFaults(ctx, env)
	}
	server, err := env.OpenRedis(ctx)
	if err != nil {
		return nil, err
	}
	key := "lockstep-bench:" + uuid.NewString() // unique for this run
	return b.runContest(ctx, env, server, key)
}
