package stream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"lockstep/bench/rig"
	"lockstep/events"
)

// runServed measures changes of repositories in which nothing is new: a lease, a list of the remote's refs, and a settlement.
func (b *bench) runServed(ctx context.Context, env *rig.Env) (report Report, err error) {
	sides, err := env.Sides(ctx, b.against)
	if err != nil {
		return report, err
	}
	server, err := env.OpenRedis(ctx)
	if err != nil {
		return report, err
	}
	forge, err := env.NewForge(ctx, 1, 1)
	if err != nil {
		return report, err
	}
	forge.Default = map[string]int{"refs/heads/main": 0}
	host, err := env.ServeHost(1, forge)
	if err != nil {
		return report, err
	}
	changes := make([]events.Change, b.changes)
	for i, url := range host.URLs("stream", b.changes) {
		changes[i].URL = url
	}
	names := make([]string, len(sides))
	for i, side := range sides {
		names[i] = side.Name
	}
	report.Setup = fmt.Sprintf("lockstep serve, %d changes of as many repositories with nothing new, one process × %d slots", b.changes, b.slots)
	report.Rows, err = b.compare(env, names, func(_, i int) (sample, error) { return b.serve(ctx, env, server, sides[i], changes) })
	return report, err
}

// serve measures one side with a new process, an empty Redis and an empty volume.
func (b *bench) serve(ctx context.Context, env *rig.Env, server *rig.Redis, side rig.Side, changes []events.Change) (round sample, err error) {
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
	round.PerSecond = float64(len(changes)) / time.Since(began).Seconds()
	after, err := worker.CPU(ctx)
	spent := after.Per(len(changes), before)
	round.CPU = spent.Worker + spent.Redis
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
