package lock

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
)

// Bench is what the flags of bench lock say.
type Bench struct {
	redis              string
	Processes, Waiters int
	hold, Duration     time.Duration
	rounds             int
	peers              []string
	uncontended        bool
	holdMany           int
	faults             bool
	lease              time.Duration // with faults
	out                term.Output
}

func NewCommand(std term.Streams) *cobra.Command {
	var b Bench
	cmd := &cobra.Command{
		Use:   "lock",
		Short: "Measure how a contended lock changes hands, and what an uncontended one costs",
		Long: "Let several processes contend for one key and print how it went: how many grants, how long the key\n" +
			"took from one holder to the next, who had to wait longest, and how evenly it was shared out. Peers\n" +
			"are commands that speak the same worker protocol, see bench/README.md; rounds of all contestants\n" +
			"alternate. It fails if two waiters ever held the key at once.\n\n" +
			"--uncontended and --hold-many measure something else instead: pairs of acquire and release by one\n" +
			"process, against the plainest pair of scripts; and what it costs to keep that many leases.\n\n" +
			"--faults kills and stops processes, breaks subscriptions and restarts Redis, all at once, and judges by\n" +
			"the fences that reached a volume. It fails if one was accepted below a higher one or given out twice,\n" +
			"or if nobody got the key for longer than a lease and a second.\n\n" +
			"Without --redis it starts a private redis-server.",
		Example: "  go run ./bench lock --peer 'redsync=bin/peers redsync' --peer 'redislock=bin/peers redislock'\n" +
			"  go run ./bench lock --uncontended\n" +
			"  go run ./bench lock --hold-many 10000 --duration 30s --json\n" +
			"  go run ./bench lock --faults --duration 60s",
		Args: term.WrongUse(term.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(b.checkFaults(cmd.Flags().Changed), b.check()); err != nil {
				return term.UsageError(err)
			}
			app.SilenceRedis()
			if b.faults {
				return b.runFaults(cmd.Context(), std, "bench")
			}
			server, err := rig.OpenRedis(cmd.Context(), b.redis)
			if err != nil {
				return err
			}
			defer server.Close()
			// A key of its own: nobody who uses this Redis knows it, nor does an earlier run.
			key := "lockstep-bench:" + uuid.NewString()
			switch {
			case b.uncontended:
				return b.runUncontended(cmd.Context(), std, server, key)
			case b.holdMany > 0:
				return b.runHoldMany(cmd.Context(), std, server, key)
			default:
				return b.runContest(cmd.Context(), std, server, key)
			}
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&b.redis, "redis", "", "`URL` of the Redis to measure on (default: a private redis-server)")
	flags.IntVar(&b.Processes, "processes", 8, "how many processes contend")
	flags.IntVar(&b.Waiters, "waiters", 4, "how many goroutines of each process contend")
	flags.DurationVar(&b.hold, "hold", 2*time.Millisecond, "how long each grant is held")
	flags.DurationVar(&b.Duration, "duration", 10*time.Second, "how long each contestant is measured in each round")
	flags.IntVar(&b.rounds, "rounds", 3, "how many rounds; the figures are medians")
	flags.StringArrayVar(&b.peers, "peer", nil, "another contestant, as `NAME=COMMAND …`; may be repeated")
	flags.BoolVar(&b.uncontended, "uncontended", false, "measure acquire and release without contention")
	flags.IntVar(&b.holdMany, "hold-many", 0, "measure what it costs to hold so `many` leases")
	flags.BoolVar(&b.faults, "faults", false, "inject faults (defaults then: --processes 6 --duration 15s --lease 2s)")
	flags.DurationVar(&b.lease, "lease", 0, "how long a lease outlives its holder, with --faults")
	b.out.Add(cmd)
	return cmd
}

func (b *Bench) check() error {
	switch {
	case b.Processes < 1 || b.Waiters < 1 || b.rounds < 1:
		return errors.New("--processes, --waiters and --rounds: want at least 1 of each")
	case b.hold < 0 || b.Duration <= 0:
		return errors.New("--hold and --duration: want positive durations")
	case b.holdMany < 0:
		return errors.New("--hold-many: want a positive number")
	case b.uncontended && b.holdMany > 0:
		return errors.New("--uncontended and --hold-many are two measurements: choose one")
	case len(b.peers) > 0 && (b.uncontended || b.holdMany > 0):
		return errors.New("--peer is for the contended measurement alone")
	case b.holdMany > 0 && b.Duration < lease10:
		return fmt.Errorf("--duration is %v: with --hold-many it must be at least a lease, %v", b.Duration, lease10)
	}
	return nil
}

// thisProgram is the contestant that runs us again, as a worker.
func thisProgram() (rig.Contestant, error) {
	path, err := os.Executable()
	return rig.Contestant{Name: "lockstep", Argv: []string{path, "lock-worker"}}, err
}
