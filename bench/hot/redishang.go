package hot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
)

// redisHang is the case of a Redis that does not answer while handlers work.
type redisHang struct {
	workload
	jobs, times       int
	hang, work, limit time.Duration
}

const hangPause = 4 * time.Second // between hangs, and before the first

func newRedisHangCommand(std term.Streams) *cobra.Command {
	var c redisHang
	cmd := newCase(std, &cobra.Command{
		Use:   "redishang",
		Short: "Handlers that work while Redis hangs",
		Long: "Let workers with a pause instead of Git hold jobs while Redis hangs several times (DEBUG SLEEP), and count the\n" +
			"handlers that could not settle, the entries that were charged attempts, and those worked on twice.",
	}, func() error {
		return atLeastOne("--jobs, --times, --hang, --limit, --processes and --slots",
			int64(c.jobs), int64(c.times), int64(c.hang), int64(c.limit), int64(c.processes), int64(c.slots))
	}, c.run, "--enable-debug-command", "yes")
	flags := cmd.Flags()
	c.addFlags(flags, 2, 16)
	flags.IntVar(&c.jobs, "jobs", 30, "number of jobs")
	flags.IntVar(&c.times, "times", 1, "how often Redis hangs")
	flags.DurationVar(&c.hang, "hang", 12*time.Second, "how long it hangs each time")
	flags.DurationVar(&c.work, "work", 0, "how long a job takes (default: a little longer than all hangs)")
	flags.DurationVar(&c.limit, "limit", 3*time.Minute, "how long to wait for the last job after the hangs")
	return cmd
}

func (c *redisHang) run(ctx context.Context, env *rig.Env, server *rig.Redis) (rig.Report, error) {
	if c.work == 0 {
		c.work = time.Duration(c.times)*(c.hang+hangPause) + hangPause
	}
	return c.withPausing(ctx, env, server, c.work, func(changes *ledger, workers *pausing) (rig.Report, error) {
		return c.measure(ctx, env, server, changes, workers)
	})
}

func (c *redisHang) measure(ctx context.Context, env *rig.Env, server *rig.Redis, changes *ledger, workers *pausing) (rig.Report, error) {
	charged := watchAttempts(ctx, server, changes.namespace)
	defer charged.stop()
	number := 0
	ids, err := changes.publishEvery(ctx, 0, c.jobs, numbered(&number, "job", c.jobs))
	if err != nil {
		return nil, err
	}
	for i := range c.times {
		if !app.Sleep(ctx, hangPause) {
			return nil, context.Cause(ctx)
		}
		env.Progress("hang %d of %d", i+1, c.times)
		if err := c.hangOnce(ctx, server); err != nil {
			return nil, err
		}
	}
	latency, err := changes.latency(ctx, ids, c.work+c.limit)
	if err != nil {
		return nil, err
	}
	entries, most := charged.end()
	report := newCaseReport("redishang", "%d jobs of %v, %d processes × %d slots, Redis hangs %d times for %v",
		c.jobs, c.work, c.processes, c.slots, c.times, c.hang)
	count(report, workers.stop())
	report.addWithin(0, "entries charged attempts", float64(entries))
	report.addWithin(0, "most attempts charged to one", float64(most))
	report.addWithin(0, "jobs with several results", float64(changes.repeated))
	report.addWithin(0, "jobs without a result", float64(latency.Pending))
	report.add("all done after, s", latency.Max.Seconds())
	return report, nil
}

// hangOnce lets Redis hang, and returns when it answers again.
func (c *redisHang) hangOnce(ctx context.Context, server *rig.Redis) error {
	client := server.Open()
	defer client.Close()
	err := client.Do(ctx, "DEBUG", "SLEEP", c.hang.Seconds()).Err()
	if _, refused := errors.AsType[redis.Error](err); refused {
		return fmt.Errorf("let Redis hang: %w", err)
	}
	for client.Ping(ctx).Err() != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// count adds figures of the lines of workers that pause.
func count(report *caseReport, lines [][4]int64) {
	unsettled, times := 0, map[int64]int{}
	for _, line := range lines {
		if line[3] == 0 {
			unsettled++
		}
		times[line[0]]++
	}
	again := 0
	for _, n := range times {
		if n > 1 {
			again++
		}
	}
	report.addWithin(0, "handlers that could not settle", float64(unsettled))
	report.addWithin(0, "jobs worked on twice", float64(again))
}

// pendingCount returns how many entries of the changes are pending.
func pendingCount(ctx context.Context, client redis.UniversalClient, namespace events.Namespace) (int64, error) {
	pending, err := client.XPending(ctx, namespace.Changes(), events.WorkersGroup).Result()
	if err != nil {
		return 0, err
	}
	return pending.Count, nil
}
