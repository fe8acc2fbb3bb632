package move

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// attempt is one attempt at a move.
type attempt struct {
	*Mover
	req  Request
	move state.CellMove // as the new cell records it

	old, new cell
	step     string // the last one finished
	marked   bool   // the commit point is behind
	moot     bool   // nobody wants the move any more
}

// done notes a finished step.
func (a *attempt) done(step string) {
	a.step = step
	a.cfg.Step(step, a.req.Repo)
}

// out is the move as the old cell records it.
func (a *attempt) out() state.CellMove {
	return state.CellMove{Repo: a.req.Repo, Cell: a.cfg.Cell, Epoch: a.req.Epoch}
}

func (a *attempt) run(ctx context.Context) (err error) {
	if a.req.From == a.cfg.Cell {
		return nil
	}
	if err = a.cfg.Directory.Refresh(ctx); err != nil { // where the reader of the old cell is
		return err
	}
	if a.old, err = a.open(a.req.From); err != nil {
		return err
	}
	if a.new, err = a.open(a.cfg.Cell); err != nil {
		return err
	}
	known, err := a.old.states.Load(ctx, a.req.Repo)
	if err != nil && a.old.State != cells.Gone {
		return err
	}
	move, _, departed := known.MovedToCell()
	switch {
	case departed && move.Cell == a.cfg.Cell && !a.isOvertaken():
		// an earlier attempt, perhaps by a request that was lost since
		a.marked, a.req.Epoch, a.move.Epoch = true, move.Epoch, move.Epoch
	case !a.isWanted():
		a.moot = true
		return a.abandon(ctx)
	default:
		if err := a.stage(ctx); err != nil {
			return err
		}
	}
	return a.withBoth(ctx, a.commit)
}

// isWanted reports whether the repository shall still be moved: the old cell may have been lost since the
// request, or the weights changed.
func (a *attempt) isWanted() bool {
	return a.old.State != cells.Gone && (a.req.Pin || a.cfg.Directory.Target(a.req.Repo).Name == a.cfg.Cell)
}

// isOvertaken reports whether the old cell was lost and the repository is placed in a third one: the move
// cannot be completed then.
func (a *attempt) isOvertaken() bool {
	at := a.cfg.Directory.Place(a.req.Repo).Name
	return a.old.State == cells.Gone && at != a.old.Name && at != a.new.Name
}

// stage copies what is published while the old cell works on the repository.
func (a *attempt) stage(ctx context.Context) error {
	floor, err := a.cfg.Volume.Floor(a.req.Repo)
	if err != nil {
		return err
	}
	return a.cfg.Locker.Do(ctx, a.request(floor), func(ctx context.Context, lease *locking.Lease) error {
		if requested, err := a.isRequested(ctx); err != nil || !requested {
			return err
		}
		if err := a.new.states.Arrive(ctx, a.move, lease.Guard()); err != nil {
			return err
		}
		if err := a.copy(ctx, lease); err != nil {
			return err
		}
		a.done("staged")
		return nil
	})
}

func (a *attempt) request(floor uint64) locking.Request {
	return locking.Request{
		Key: a.req.Repo.Key(), Job: "move/" + a.req.From + "/" + a.cfg.Cell, Operation: "move", Floor: floor,
	}
}

// withBoth calls fn while it holds the leases of both cells, taken in the order of the cells' names, so that
// two moves cannot wait for each other.
func (a *attempt) withBoth(ctx context.Context, fn func(ctx context.Context, old, here *locking.Lease) error) error {
	other, err := a.locker(a.old.Cell)
	if err != nil {
		return err
	}
	floor, err := a.cfg.Volume.Floor(a.req.Repo)
	if err != nil {
		return err
	}
	if a.old.Name < a.new.Name {
		return other.Do(ctx, a.request(0), func(ctx context.Context, old *locking.Lease) error {
			return a.cfg.Locker.Do(ctx, a.request(max(floor, old.Fence())), func(
				ctx context.Context, here *locking.Lease,
			) error {
				return fn(ctx, old, here)
			})
		})
	}
	return a.cfg.Locker.Do(ctx, a.request(floor), func(ctx context.Context, here *locking.Lease) error {
		return other.Do(ctx, a.request(0), func(ctx context.Context, old *locking.Lease) error { return fn(ctx, old, here) })
	})
}

// isRequested reports whether the request is still kept: another worker may have completed the move while
// this one waited for a lease.
func (a *attempt) isRequested(ctx context.Context) (bool, error) {
	_, kept, err := a.queue.Get(ctx, a.req.Repo)
	return kept, err
}

// commit takes the steps from "leased" on.
func (a *attempt) commit(ctx context.Context, old, here *locking.Lease) error {
	a.done("leased")
	if requested, err := a.isRequested(ctx); err != nil || !requested {
		return err
	}
	known, err := a.old.states.Load(ctx, a.req.Repo)
	if err != nil {
		return err
	}
	move, last, departed := known.MovedToCell()
	switch {
	case departed && move.Cell != a.cfg.Cell:
		return events.Errorf(events.Permanent, events.ClassConflict, "%s was moved from cell %s to cell %s", a.req.Repo,
			a.old.Name, move.Cell)
	case departed:
		a.marked = true
	case !known.IsHere():
		return events.Errorf(events.Retryable, events.ClassBusy, "%s has not arrived in cell %s yet", a.req.Repo, a.old.Name)
	}
	active, gone, err := a.isActive(ctx, last)
	if err != nil || gone {
		return err
	}
	if !departed {
		if err := a.copy(ctx, here); err != nil {
			return err
		}
		a.done("copied")
	}
	if !active {
		if err := a.cfg.Volume.RaiseFloor(ctx, a.req.Repo, here.Fence(), max(old.Fence(), known.Fence())); err != nil {
			return err
		}
		a.done("floored")
	}
	if err := here.Confirm(ctx); err != nil {
		return err
	}
	if !departed {
		if err := a.checkArriving(ctx); err != nil {
			return err
		}
	}
	if last, err = a.mark(ctx, old); err != nil {
		return err
	}
	a.done("marked")
	return a.complete(ctx, known, last, old, here, active)
}

// checkArriving checks before the mark that no other attempt has abandoned the move, and that it is still wanted.
func (a *attempt) checkArriving(ctx context.Context) error {
	if err := a.cfg.Directory.Refresh(ctx); err != nil {
		return err
	}
	if refreshed, err := a.open(a.req.From); err == nil {
		a.old.State = refreshed.State
	}
	known, err := a.new.states.Load(ctx, a.req.Repo)
	if err != nil {
		return err
	}
	if arriving, ok := known.Arriving(); !ok || arriving.Cell != a.req.From || arriving.Epoch != a.move.Epoch ||
		!a.isWanted() {
		return events.Errorf(events.Retryable, events.ClassBusy, "the move of %s to cell %s was abandoned meanwhile",
			a.req.Repo, a.new.Name)
	}
	return nil
}

// isActive reports whether the move has been completed in the new cell, and whether the repository has left
// that one since: it was marked as arriving there before the old cell marked it as moved.
func (a *attempt) isActive(ctx context.Context, last string) (active, gone bool, err error) {
	known, err := a.new.states.Load(ctx, a.req.Repo)
	if err != nil || !a.marked {
		return false, false, err
	}
	_, _, gone = known.MovedToCell()
	follows := known.Follows()
	return known.IsHere() && follows != nil && follows.Cell == a.old.Name && follows.Entry == last, gone, nil
}

// mark marks the repository as moved in the old cell, and returns the last entry of its results. If its Redis
// has replicas, one of them has the mark then.
func (a *attempt) mark(ctx context.Context, old *locking.Lease) (last string, err error) {
	guard := old.Guard()
	node, err := masterOf(ctx, a.cfg.Redis, guard.Key)
	if err != nil {
		return "", err
	}
	if node == nil {
		if last, err = a.old.states.Depart(ctx, nil, a.out(), guard); err != nil {
			return last, err
		}
		a.marked = true
		return last, nil
	}
	conn := node.Conn() // WAIT is about the writes of its connection
	defer conn.Close()
	if last, err = a.old.states.Depart(ctx, conn, a.out(), guard); err != nil {
		return "", err
	}
	a.marked = true
	replication, err := conn.Info(ctx, "replication").Result()
	if err != nil || strings.Contains(replication, "connected_slaves:0") ||
		!strings.Contains(replication, "connected_slaves:") {
		return last, err
	}
	replicas, err := conn.Wait(ctx, 1, a.cfg.Confirm).Result()
	if err != nil {
		return last, err
	}
	if replicas == 0 {
		return last, events.Errorf(events.Retryable, events.ClassInternal,
			"no replica of the old cell's Redis has confirmed the mark within %v", a.cfg.Confirm)
	}
	return last, nil
}

// masterOf returns the client of the master that has a key, or nil for a kind of client that has no such notion.
func masterOf(ctx context.Context, client redis.UniversalClient, key string) (*redis.Client, error) {
	switch c := client.(type) {
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, key)
	case *redis.Client:
		return c, nil
	}
	return nil, nil
}

// complete takes the steps after the commit point. known is the state in the old cell.
func (a *attempt) complete(
	ctx context.Context, known state.Repo, last string, old, here *locking.Lease, active bool,
) error {
	if _, err := a.cfg.Directory.Flip(ctx, a.req.Repo, a.old.Name, a.new.Name); err != nil && !a.isPlaced() {
		return fmt.Errorf("place %s in cell %s: %w", a.req.Repo, a.new.Name, err)
	}
	if a.req.Pin {
		if _, err := a.cfg.Directory.Pin(ctx, a.req.Repo, a.new.Name); err != nil {
			return fmt.Errorf("pin %s: %w", a.req.Repo, err)
		}
	}
	a.done("flipped")
	if active {
		return nil
	}
	set, err := a.old.watches.Of(ctx, a.req.Repo)
	if err != nil {
		return err
	}
	if err := a.new.watches.Receive(ctx, set.Watches); err != nil {
		return err
	}
	a.done("watched")
	if err := a.fetch(ctx, known); err != nil {
		return err
	}
	views, err := a.old.states.ViewsBelow(ctx, a.req.Repo, "")
	if err != nil {
		return err
	}
	published, _, err := a.cfg.Volume.Published(a.req.Repo)
	if err != nil {
		return err
	}
	fields := known.CarriedToCell()
	state.Republish(fields, published.Commits, published.Trees)
	fields["fence"] = strconv.FormatUint(max(old.Fence(), here.Fence()), 10)
	fields["repo"] = a.spelled(known, set.Watches)
	follows := events.Follows{Cell: a.old.Name, Stream: a.old.Prefix.Results(), Entry: last}
	if err := a.new.states.Activate(ctx, a.move, here.Guard(), follows, fields, views); err != nil {
		return err
	}
	a.done("activated")
	return nil
}

func (a *attempt) spelled(known state.Repo, watches []watch.Watch) string {
	if path := known.Path(); path != "" {
		return path
	}
	if len(watches) > 0 {
		return watches[0].Repo.String()
	}
	return a.req.Repo.String()
}

// isPlaced reports whether the directory places the repository in the new cell, which a repeated Flip refuses
// once the weights do.
func (a *attempt) isPlaced() bool { return a.cfg.Directory.Place(a.req.Repo).Name == a.new.Name }

// abandon removes what a move has copied that is refused or not wanted any more.
func (a *attempt) abandon(ctx context.Context) error {
	if a.new.states == nil {
		return nil
	}
	floor, err := a.cfg.Volume.Floor(a.req.Repo)
	if err != nil {
		return err
	}
	return a.cfg.Locker.Do(ctx, a.request(floor), func(ctx context.Context, lease *locking.Lease) error {
		known, err := a.new.states.Load(ctx, a.req.Repo)
		if err != nil {
			return err
		}
		arriving, ok := known.Arriving()
		if !ok || arriving.Cell != a.req.From { // another attempt may have completed the move
			return nil
		}
		a.move.Epoch = arriving.Epoch
		_, err = a.cfg.Volume.Remove(ctx, volume.RemoveRequest{
			Repo: a.req.Repo, Fence: lease.Fence(), Force: true, Confirm: lease.Confirm,
		})
		if err != nil {
			return err
		}
		return a.new.states.Abandon(ctx, a.move, lease.Guard())
	})
}
