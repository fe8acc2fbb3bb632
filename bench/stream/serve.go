package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

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
	server, err := env.OpenRedis(ctx)
	if err != nil {
		return nil, err
	}
	forge, err := env.NewForge(ctx, 1, 1)
	if err != nil {
		return nil, err
	}
	forge.Default = map[string]int{"refs/heads/main": 0}
	host, err := env.ServeHost(1, forge)
	if err != nil {
		return nil, err
	}
	changes := make([]events.Change, b.changes)
	for i, url := range host.URLs("stream", b.changes) {
		changes[i].URL = url
	}
	report := ServedReport{Changes: b.changes, Slots: b.slots, Rounds: b.rounds, Sides: make([]servedSide, len(sides))}
	names := make([]string, len(sides))
	for i, side := range sides {
		names[i], report.Sides[i].Name = side.Name, side.Name
	}
	err = env.Alternate(b.rounds, names, func(_, i int) error {
		round, err := b.serve(ctx, env, server, sides[i], changes)
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
func (b *bench) serve(ctx context.Context, env *rig.Env, server *rig.Redis, side rig.Side, changes []events.Change) (round servedRound, err error) {
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
	worker, err := env.Serve(ctx, side, server, root, "--roles", "worker", "--slots", strconv.Itoa(b.slots))
	if err != nil {
		return round, err
	}
	defer func() { _ = worker.Kill() }()
	follower, err := env.Follow(ctx, server)
	if err != nil {
		return round, err
	}
	defer follower.Close()
	if err := settle(ctx, follower, changes); err != nil { // the first syncs
		return round, err
	}
	if err := rig.AwaitIdle(ctx, worker.Cmd.Process.Pid, 200*time.Millisecond); err != nil { // it may prepare next trees
		return round, err
	}
	before, err := worker.CPU(ctx)
	if err != nil {
		return round, err
	}
	began := time.Now()
	if err := settle(ctx, follower, changes); err != nil {
		return round, err
	}
	round.took = time.Since(began)
	after, err := worker.CPU(ctx)
	round.cpu = after.Worker + after.Redis - before.Worker - before.Redis
	return round, err
}

// settle publishes changes, and waits until all have results.
func settle(ctx context.Context, follower *rig.Follower, changes []events.Change) error {
	waits, err := follower.PublishAll(ctx, changes)
	if err != nil {
		return err
	}
	for _, wait := range waits {
		if _, err := wait.Await(ctx); err != nil {
			return err
		}
	}
	return nil
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
