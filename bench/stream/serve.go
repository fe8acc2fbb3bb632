package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/stats"
)

// ServedReport compares processes of lockstep serve. The first side is this tree's.
type ServedReport struct {
	Changes int          `json:"changes"`
	Slots   int          `json:"slots"`
	Rounds  int          `json:"rounds"`
	Sides   []servedSide `json:"sides"`
}

type servedSide struct {
	Name      string               `json:"name"`
	PerSecond float64              `json:"changes_per_second"`
	CPU       time.Duration        `json:"cpu_ns"`   // of the worker and Redis, for a change
	Rate      stats.Range[float64] `json:"rate"`     // of the first side's rate to this one's, in the same round
	CPURatio  stats.Range[float64] `json:"cpu_rate"` // of the first side's CPU time to this one's

	rounds []servedRound
}

type servedRound struct {
	took, cpu time.Duration
}

// runServed measures changes of repositories in which nothing is new: a lease, a list of the remote's refs, and a settlement.
func (b *bench) runServed(ctx context.Context, env *rig.Env) (rig.Report, error) {
	sides, err := env.Sides(ctx, b.against)
	if err != nil {
		return nil, err
	}
	server, err := env.OpenRedis(ctx, "")
	if err != nil {
		return nil, err
	}
	remote, err := env.NewRemote(ctx, 0)
	if err != nil {
		return nil, err
	}
	host, err := env.ServeHost(1, remote)
	if err != nil {
		return nil, err
	}
	report := ServedReport{Changes: b.changes, Slots: b.slots, Rounds: b.rounds, Sides: make([]servedSide, len(sides))}
	names := make([]string, len(sides))
	for i, side := range sides {
		names[i], report.Sides[i].Name = side.Name, side.Name
	}
	err = env.Alternate(b.rounds, names, func(_, i int) error {
		round, err := b.serve(ctx, env, server, sides[i], host.URLs("stream", b.changes))
		report.Sides[i].rounds = append(report.Sides[i].rounds, round)
		return err
	})
	if err != nil {
		return nil, err
	}
	rounds := make([]int, b.rounds)
	for i := range rounds {
		rounds[i] = i
	}
	first := report.Sides[0].rounds
	for i := range report.Sides {
		s := &report.Sides[i]
		s.PerSecond = stats.MedianOf(s.rounds, func(r servedRound) float64 { return float64(b.changes) / r.took.Seconds() })
		s.CPU = stats.MedianOf(s.rounds, func(r servedRound) time.Duration { return r.cpu / time.Duration(b.changes) })
		s.Rate = stats.RangeOf(rounds, func(i int) float64 { return stats.Ratio(s.rounds[i].took, first[i].took) })
		s.CPURatio = stats.RangeOf(rounds, func(i int) float64 { return stats.Ratio(first[i].cpu, s.rounds[i].cpu) })
	}
	return report, nil
}

// serve measures one side with a new process, an empty Redis and an empty volume.
func (b *bench) serve(ctx context.Context, env *rig.Env, server *rig.Redis, side rig.Side, urls []string) (round servedRound, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("the changes were not settled in two minutes"))
	defer cancel()
	if err := server.Client.FlushAll(ctx).Err(); err != nil {
		return round, err
	}
	root, err := os.MkdirTemp(env.Dir, "root-")
	if err != nil {
		return round, err
	}
	defer os.RemoveAll(root)
	worker, err := env.StartBinary(ctx, side.Path, "serve", "--roles", "worker", "--redis", server.URL, "--root", root, "--slots", strconv.Itoa(b.slots), "--log-level", "error")
	if err != nil {
		return round, err
	}
	defer func() { _ = worker.Kill() }()
	if err := settle(ctx, server, urls, 1); err != nil { // the first syncs
		return round, err
	}
	cpu := func() (time.Duration, error) {
		own, err := rig.CPUTime(worker.Cmd.Process.Pid)
		redis, errRedis := server.CPU(ctx)
		return own + redis, errors.Join(err, errRedis)
	}
	if err := rig.AwaitIdle(ctx, worker.Cmd.Process.Pid, 200*time.Millisecond); err != nil { // it may prepare next trees
		return round, err
	}
	before, err := cpu()
	if err != nil {
		return round, err
	}
	began := time.Now()
	if err := settle(ctx, server, urls, 2); err != nil {
		return round, err
	}
	round.took = time.Since(began)
	after, err := cpu()
	round.cpu = after - before
	return round, err
}

// settle publishes a change to each repository, and waits until each has that many results.
func settle(ctx context.Context, server *rig.Redis, urls []string, results int) error {
	publishers, publishing := errgroup.WithContext(ctx)
	publishers.SetLimit(16)
	for _, url := range urls {
		publishers.Go(func() error {
			_, err := rig.Publish(publishing, server.Client, events.DefaultNamespace, events.Change{URL: url})
			return err
		})
	}
	if err := publishers.Wait(); err != nil {
		return err
	}
	return rig.AwaitResults(ctx, server.Client, events.DefaultNamespace, int64(results*len(urls)), 2*time.Millisecond)
}

// Table prints the report as text.
func (r ServedReport) Table(w io.Writer) error {
	fmt.Fprintf(w, "lockstep serve, %d changes of as many repositories with nothing new, one process × %d slots; rounds: %d, medians\n\n", r.Changes, r.Slots, r.Rounds)
	tw := rig.NewTable(w)
	fmt.Fprintf(tw, "\tchanges/s\tCPU of worker and Redis, ms\t%s's rate to it\tCPU to it\t\n", r.Sides[0].Name)
	for _, s := range r.Sides {
		fmt.Fprintf(tw, "%s\t%.0f\t%s\t%s\t%s\t\n", s.Name, s.PerSecond, rig.Millis(s.CPU), rig.RatioRange(s.Rate), rig.RatioRange(s.CPURatio))
	}
	return tw.Flush()
}
