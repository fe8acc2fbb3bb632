package starve

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/cli/term"
)

// hotRefs is the case of hot repositories with many queued branches on a slow remote.
type hotRefs struct {
	load
	hot, branches, cold, rate int
	delay, limit              time.Duration
}

func newHotRefsCommand(std term.Streams) *cobra.Command {
	var c hotRefs
	cmd := newCase(std, &cobra.Command{
		Use:   "hotrefs",
		Short: "Syncs of cold repositories beside hot ones with many queued branches on a slow remote",
		Long: "Sync cold repositories, each once, at a fixed rate from a fast remote: first alone, then beside hot repositories\n" +
			"with many queued branches on another host that answers each request after a delay.",
	}, func() error {
		return atLeastOne("--hot, --branches, --cold, --rate, --delay, --limit, --processes and --slots", int64(c.hot), int64(c.branches),
			int64(c.cold), int64(c.rate), int64(c.delay), int64(c.limit), int64(c.processes), int64(c.slots))
	}, c.run)
	flags := cmd.Flags()
	c.addFlags(flags, 1, 8)
	flags.IntVar(&c.hot, "hot", 16, "number of hot repositories")
	flags.IntVar(&c.branches, "branches", 150, "number of queued branches of each of them")
	flags.IntVar(&c.cold, "cold", 2000, "number of cold repositories, with one change each")
	flags.IntVar(&c.rate, "rate", 40, "changes to cold repositories per second")
	flags.DurationVar(&c.delay, "delay", time.Second, "delay of each answer to hot repositories")
	flags.DurationVar(&c.limit, "limit", time.Minute, "how long to wait for the last cold repository")
	return cmd
}

func (c *hotRefs) run(ctx context.Context, env *rig.Env, server *rig.Redis) (rig.Report, error) {
	content, err := newRemote(ctx, env, c.branches)
	if err != nil {
		return nil, err
	}
	fast, err := serve(env, 1, content)
	if err != nil {
		return nil, err
	}
	slow, err := serve(env, 2, delayed(c.delay, content))
	if err != nil {
		return nil, err
	}
	changes, err := newLedger(server, events.DefaultNamespace)
	if err != nil {
		return nil, err
	}
	workers, err := c.startServices(ctx, env, server)
	if err != nil {
		return nil, err
	}

	if err := changes.warmUp(ctx, fast.urls("first", 1)[0]); err != nil {
		return nil, err
	}
	calm, err := syncCold(ctx, env, changes, fast, "calm", c.cold, c.rate, c.limit)
	if err != nil {
		return nil, err
	}
	if err := c.queueHot(ctx, changes, slow); err != nil {
		return nil, err
	}
	loaded, err := syncCold(ctx, env, changes, fast, "cold", c.cold, c.rate, c.limit)
	if err != nil {
		return nil, err
	}
	timeouts, err := workers.countLog("lock timeout")
	if err != nil {
		return nil, err
	}
	report := newReport("hotrefs", server,
		"%d hot repositories × %d branches on a remote %v away, %d cold repositories at %d/s, %d processes × %d slots", c.hot, c.branches, c.delay, c.cold, c.rate, c.processes, c.slots)
	report.compare(calm, loaded)
	target := 1.3
	if c.hot == 1 {
		target = 1.2
	}
	report.addWithin(target, "p99 ratio", report.RatioP99)
	report.addWithin(0, `ERROR "lock timeout"`, float64(timeouts))
	return report, nil
}

// queueHot queues all branches of the hot repositories, and waits until the first request for one arrives.
func (c *hotRefs) queueHot(ctx context.Context, changes *ledger, slow *host) error {
	urls := slow.urls("hot", c.hot)
	_, err := changes.publishEvery(ctx, 0, c.hot*c.branches, func(i int) (events.Change, error) {
		ref, err := events.ParseRef("refs/heads/" + branch(i/c.hot))
		return events.Change{URL: urls[i%c.hot], Ref: ref}, err
	})
	if err != nil {
		return err
	}
	return rig.AwaitCount(ctx, 1, 5*time.Millisecond, func() (int64, error) { return slow.requests.Load(), nil })
}

// syncCold publishes a change to each of n new repositories at a fixed rate, and returns how long they took.
func syncCold(ctx context.Context, env *rig.Env, changes *ledger, from *host, name string, n, rate int, limit time.Duration) (Latency, error) {
	env.Progress("%s: %d repositories at %d/s", name, n, rate)
	ids, err := changes.publishURLs(ctx, time.Second/time.Duration(rate), from.urls(name, n))
	if err != nil {
		return Latency{}, err
	}
	return changes.latency(ctx, ids, limit)
}
