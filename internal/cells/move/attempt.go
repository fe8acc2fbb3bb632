package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/state"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// attempt is one attempt at a move.
type attempt struct {
	*Mover
	move     state.CellMove // as the old cell records it
	old, new cell
	resumes  bool // it begins no move
}

// in is the move as the new cell records it.
func (a *attempt) in() state.CellMove {
	return state.CellMove{Repo: a.move.Repo, Cell: a.old.Name, Epoch: a.move.Epoch}
}

// run takes the steps, or those that are left.
func (a *attempt) run(ctx context.Context) error {
	if err := a.under(ctx, a.old, 0, a.mark); err != nil {
		return err
	}
	a.step("marked", a.move.Repo)
	return a.complete(ctx)
}

type step func(ctx context.Context, lease *locking.Lease) error

// under calls fn under the repository's lease in a cell, whose fence is above floor.
func (a *attempt) under(ctx context.Context, in cell, floor uint64, fn step) error {
	locker, err := locking.New(locking.Config{
		Redis: a.Redis, PubSub: a.PubSub, Prefix: in.Prefix.Locks(), Lease: a.Lease, Wait: a.Wait, Worker: a.Worker,
		Log: a.Log, KeyName: "repo",
	})
	if err != nil {
		return err
	}
	defer func() { _ = locker.Close(context.WithoutCancel(ctx)) }() // the lease is released by then
	return locker.Do(ctx, locking.Request{
		Key: a.move.Repo.Key(), Job: "move/" + a.old.Name + "/" + a.new.Name, Operation: "move", Floor: floor,
	}, fn)
}

// mark marks the repository as moved in the old cell, unless that is impossible or not wanted any more.
func (a *attempt) mark(ctx context.Context, lease *locking.Lease) error {
	known, err := a.old.states.Load(ctx, a.move.Repo)
	if err != nil {
		return err
	}
	move, _, departed := known.MovedToCell()
	switch {
	case departed && move.Cell == a.new.Name: // an earlier attempt may have failed before a replica had the mark
		a.move.Epoch, a.move.Pin = move.Epoch, move.Pin
		return a.depart(ctx, lease.Guard())
	case departed:
		return events.Errorf(events.Permanent, events.ClassConflict, "%s was moved from cell %s to cell %s", a.move.Repo,
			a.old.Name, move.Cell)
	case a.resumes: // it has come back meanwhile
		return nil
	}
	if err := a.checkWanted(ctx); err != nil {
		return err
	}
	if err := a.checkFetched(known); err != nil {
		return err
	}
	set, err := a.old.watches.Of(ctx, a.move.Repo)
	if err != nil {
		return err
	}
	if known.IsZero() && len(set.Watches) == 0 {
		return events.Errorf(events.Permanent, events.ClassConflict,
			"%s is not in cell %s, where it is placed: it has neither a state nor a watch", a.move.Repo, a.old.Name)
	}
	if err := a.checkTarget(ctx, set.Watches); err != nil {
		return err
	}
	return a.depart(ctx, lease.Guard())
}

// checkWanted returns an error that wraps [cells.ErrChanged] unless the repository is to be moved: since that was
// found, the weights may have changed, or the old cell may have been lost.
func (a *attempt) checkWanted(ctx context.Context) error {
	if err := a.Directory.Refresh(ctx); err != nil {
		return err
	}
	repo := a.move.Repo
	if a.Directory.Place(repo).Name == a.old.Name && (a.move.Pin || a.Directory.Target(repo).Name == a.new.Name) {
		return nil
	}
	return fmt.Errorf("move %s from cell %s to cell %s: %w", repo, a.old.Name, a.new.Name, cells.ErrChanged)
}

// checkFetched refuses to move a repository on whose old cell has not fetched it since it came from another one: that
// one has the only copy, from which readers are served.
func (a *attempt) checkFetched(known state.Repo) error {
	from, _ := known.From()
	if serving, there := a.Directory.Cell(from.Cell); !there || serving.State == cells.Gone || !known.NeedsOther() {
		return nil
	}
	return events.Errorf(events.Retryable, events.ClassBusy, "cell %s has not fetched %s yet, which came from cell %s",
		a.old.Name, a.move.Repo, from.Cell)
}

// checkTarget refuses to move the repository to a cell that has another one at its path, or still has files of its last
// stay, or that no worker is working for.
func (a *attempt) checkTarget(ctx context.Context, watches []watch.Watch) error {
	workers, err := stream.Consumers(ctx, a.Redis, a.new.Prefix.Changes(), events.WorkersGroup)
	if err != nil {
		return err
	}
	if len(workers) == 0 || workers[0].Idle >= stream.LiveFor {
		return events.Errorf(events.Retryable, events.ClassBusy, "cell %s has no live worker", a.new.Name)
	}
	there, err := a.new.states.Load(ctx, a.move.Repo)
	if err != nil {
		return err
	}
	if there.IsOccupied() {
		return events.Errorf(events.Permanent, events.ClassConflict,
			"move %s: there is another repository at this path in the new cell", a.move.Repo)
	}
	for _, key := range []string{a.new.Prefix.Departing(), a.new.Prefix.Departed()} {
		err := a.Redis.ZScore(ctx, key, a.move.Repo.Key()).Err()
		if err == nil {
			return events.Errorf(events.Retryable, events.ClassBusy,
				"cell %s still has files of %s, which was moved from there", a.new.Name, a.move.Repo)
		}
		if !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return a.new.watches.CheckReceive(ctx, watches)
}

// depart writes the mark. If the old cell's Redis has replicas, one of them has it then.
func (a *attempt) depart(ctx context.Context, guard locking.Guard) error {
	node, _ := a.Redis.(*redis.Client)
	if cluster, ok := a.Redis.(*redis.ClusterClient); ok {
		var err error
		if node, err = cluster.MasterForKey(ctx, guard.Key); err != nil {
			return err
		}
	}
	conn := node.Conn() // WAIT is about the writes of its connection
	defer conn.Close()
	if err := a.old.states.Depart(ctx, conn, a.move, guard, a.hold()); err != nil {
		return err
	}
	replication, err := conn.Info(ctx).Result() // the embedded Redis of tests refuses the section
	if err != nil || strings.Contains(replication, "connected_slaves:0") ||
		!strings.Contains(replication, "connected_slaves:") {
		return err
	}
	replicas, err := conn.Wait(ctx, 1, confirmWait).Result()
	if err != nil {
		return err
	}
	if replicas == 0 {
		return events.Errorf(events.Retryable, events.ClassInternal,
			"no replica of the old cell's Redis has confirmed the mark within %v", confirmWait)
	}
	return nil
}

// complete takes the steps after the mark, under the lease of the new cell.
func (a *attempt) complete(ctx context.Context) error {
	known, err := a.old.states.Load(ctx, a.move.Repo)
	if err != nil {
		return err
	}
	return a.under(ctx, a.new, known.Fence(), func(ctx context.Context, lease *locking.Lease) error {
		known, departing, err := a.departing(ctx)
		if err != nil || !departing {
			return err
		}
		there, err := a.new.states.Load(ctx, a.move.Repo)
		if err != nil {
			return err
		}
		if next, _, left := there.MovedToCell(); left && next.Epoch >= a.move.Epoch { // it arrived, and has moved on
			return a.completed(ctx)
		}
		refs := refsByHand(known)
		if !a.isActive(there) {
			if err := a.activate(ctx, known, lease, len(refs) > 0); err != nil {
				return err
			}
		}
		a.step("activated", a.move.Repo)
		if err := lease.Confirm(ctx); err != nil {
			return err
		}
		if err := a.Directory.Override(ctx, a.move.Repo, a.old.Name, a.new.Name, a.move.Pin); err != nil {
			return err
		}
		a.step("flipped", a.move.Repo)
		if err := a.request(ctx, refs); err != nil {
			return err
		}
		a.step("requested", a.move.Repo)
		return a.completed(ctx)
	})
}

// departing returns the state in the old cell, which the mark has frozen. It returns false if another process has
// completed the move.
func (a *attempt) departing(ctx context.Context) (known state.Repo, departing bool, err error) {
	err = a.Redis.ZScore(ctx, a.old.Prefix.Departing(), a.move.Repo.Key()).Err()
	if errors.Is(err, redis.Nil) {
		return known, false, nil
	}
	if err != nil {
		return known, false, err
	}
	known, err = a.old.states.Load(ctx, a.move.Repo)
	move, _, departed := known.MovedToCell()
	return known, departed && move.Cell == a.new.Name && move.Epoch == a.move.Epoch, err
}

// isActive reports whether the new cell has got the watches and the state.
func (a *attempt) isActive(there state.Repo) bool {
	from, came := there.From()
	return came && there.IsHere() && from.Cell == a.old.Name && from.Epoch == a.move.Epoch
}

// activate gives the new cell the watches and the state.
func (a *attempt) activate(ctx context.Context, known state.Repo, lease *locking.Lease, byHand bool) error {
	set, err := a.old.watches.Of(ctx, a.move.Repo)
	if err != nil {
		return err
	}
	if err := a.new.watches.Receive(ctx, set.Watches, a.in().ArrivesMark()); err != nil {
		return err
	}
	views, err := a.old.states.ViewsBelow(ctx, a.move.Repo, "")
	if err != nil {
		return err
	}
	fields := known.CarriedToCell()
	fields["fence"] = strconv.FormatUint(lease.Fence(), 10)
	fields["repo"] = cmp.Or(known.Path(), a.move.Repo.String())
	return a.new.states.Activate(ctx, a.in(), lease.Guard(), fields, views, byHand || len(set.Watches) > 0)
}

// releaseAfter is when the old cell may release a repository at the earliest: copies of the directory are a second old
// at most.
const releaseAfter = 5 * time.Second

// completed leaves the rest to the [Retirer] of the old cell.
func (a *attempt) completed(ctx context.Context) error {
	now, err := stream.Time(ctx, a.Redis, a.old.Prefix.Departed())
	if err != nil {
		return err
	}
	_, err = a.Redis.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.ZRem(ctx, a.old.Prefix.Departing(), a.move.Repo.Key())
		pipe.ZAddNX(ctx, a.old.Prefix.Departed(),
			redis.Z{Score: float64(now.Add(releaseAfter).UnixMilli()), Member: a.move.Repo.Key()})
		return nil
	})
	if err != nil {
		return fmt.Errorf("complete the move of %s: %w", a.move.Repo, err)
	}
	a.step("done", a.move.Repo)
	return nil
}
