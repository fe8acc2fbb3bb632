package move

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/locking"
)

// attempt is one attempt at a move.
type attempt struct {
	*Mover
	req  Request
	move state.CellMove // as the new cell records it

	old, new cell
	marked   bool // the commit point is behind
	moot     bool // nobody wants the move any more
}

// done notes a finished step.
func (a *attempt) done(step string) { a.cfg.Step(step, a.req.Repo) }

// out is the move as the old cell records it.
func (a *attempt) out() state.CellMove {
	return state.CellMove{Repo: a.req.Repo, Cell: a.cfg.Cell, Epoch: a.move.Epoch}
}

func (a *attempt) run(ctx context.Context) (err error) {
	if a.req.From == a.cfg.Cell {
		return nil
	}
	if err = a.cfg.Directory.Refresh(ctx); err != nil {
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
	case departed && move.Cell == a.cfg.Cell && !a.isOvertaken(): // by an earlier attempt
		a.marked = true
	case !a.isWanted():
		a.moot = true
		return a.abandon(ctx)
	default:
		if err := a.checkFetched(known); err != nil {
			return err
		}
		if err := a.here(ctx, 0, a.arrive); err != nil {
			return err
		}
	}
	if err := a.there(ctx, a.mark); err != nil || !a.marked {
		return err
	}
	a.done("marked")
	if known, err = a.old.states.Load(ctx, a.req.Repo); err != nil { // frozen by the mark until it is vacated
		return err
	}
	return a.here(ctx, known.Fence(), func(ctx context.Context, lease *locking.Lease) error {
		return a.complete(ctx, known, lease)
	})
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

type step func(ctx context.Context, lease *locking.Lease) error

// here calls fn under the lease of the new cell, whose fence is above after and that of the volume, which the
// repository may have been on before.
func (a *attempt) here(ctx context.Context, after uint64, fn step) error {
	floor, err := a.cfg.Volume.Floor(a.req.Repo)
	if err != nil {
		return err
	}
	return a.cfg.Locker.Do(ctx, a.request(max(floor, after)), fn)
}

// there calls fn under the lease of the old cell.
func (a *attempt) there(ctx context.Context, fn step) error {
	locker, err := locking.New(locking.Config{
		Redis: a.cfg.Redis, PubSub: a.cfg.PubSub, Prefix: a.old.Prefix.Locks(), Lease: a.cfg.Lease, Wait: a.cfg.Wait,
		Worker: a.cfg.Worker, Log: a.cfg.Log, KeyName: "repo",
	})
	if err != nil {
		return err
	}
	defer func() { _ = locker.Close(context.WithoutCancel(ctx)) }() // the lease is released by then
	return locker.Do(ctx, a.request(0), fn)
}

func (a *attempt) request(floor uint64) locking.Request {
	return locking.Request{
		Key: a.req.Repo.Key(), Job: "move/" + a.req.From + "/" + a.cfg.Cell, Operation: "move", Floor: floor,
	}
}

// isRequested reports whether the request is still kept: another worker may have completed the move while
// this one waited for a lease.
func (a *attempt) isRequested(ctx context.Context) (bool, error) {
	_, kept, err := a.queue.Get(ctx, a.req.Repo)
	return kept, err
}

// arrive marks the repository as arriving in the new cell. It removes what is left there of its last stay,
// except for pinned trees.
func (a *attempt) arrive(ctx context.Context, lease *locking.Lease) error {
	if requested, err := a.isRequested(ctx); err != nil || !requested {
		return err
	}
	known, err := a.new.states.Load(ctx, a.req.Repo)
	if err != nil {
		return err
	}
	if _, _, left := known.MovedToCell(); left {
		_, err := a.cfg.Volume.Remove(ctx, volume.RemoveRequest{
			Repo: a.req.Repo, Fence: lease.Fence(), Force: true, Confirm: lease.Confirm,
		})
		if err != nil && events.DispositionOf(err) != events.Contention {
			return err
		}
	}
	if err := a.new.states.Arrive(ctx, a.move, lease.Guard()); err != nil {
		return err
	}
	a.done("arriving")
	return nil
}

// mark marks the repository as moved in the old cell, unless the move is done, or not wanted any more.
func (a *attempt) mark(ctx context.Context, lease *locking.Lease) error {
	if requested, err := a.isRequested(ctx); err != nil || !requested {
		return err
	}
	known, err := a.old.states.Load(ctx, a.req.Repo)
	if err != nil {
		return err
	}
	move, _, departed := known.MovedToCell()
	a.marked = departed && move.Cell == a.cfg.Cell
	switch {
	case a.marked: // an earlier attempt may have failed before a replica had the mark
		a.move.Epoch = move.Epoch
		return a.depart(ctx, lease.Guard())
	case departed:
		return events.Errorf(events.Permanent, events.ClassConflict, "%s was moved from cell %s to cell %s", a.req.Repo,
			a.old.Name, move.Cell)
	case !known.IsHere():
		return events.Errorf(events.Retryable, events.ClassBusy, "%s has not arrived in cell %s yet", a.req.Repo, a.old.Name)
	}
	if err := a.checkFetched(known); err != nil {
		return err
	}
	set, err := a.old.watches.Of(ctx, a.req.Repo)
	if err != nil {
		return err
	}
	if err := a.new.watches.CheckReceive(ctx, set.Watches); err != nil {
		return err
	}
	if err := a.checkArriving(ctx); err != nil {
		return err
	}
	return a.depart(ctx, lease.Guard())
}

// checkFetched refuses to move a repository on whose old cell has not fetched it since it came from another one: that
// one has the only copy, from which readers are served.
func (a *attempt) checkFetched(known state.Repo) error {
	from, _ := known.From()
	if serving, there := a.cfg.Directory.Cell(from.Cell); !there || serving.State == cells.Gone || !known.NeedsOther() {
		return nil
	}
	return events.Errorf(events.Retryable, events.ClassBusy, "cell %s has not fetched %s yet, which came from cell %s",
		a.old.Name, a.req.Repo, from.Cell)
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

// depart writes the mark. If the old cell's Redis has replicas, one of them has it then.
func (a *attempt) depart(ctx context.Context, guard locking.Guard) error {
	node, err := masterOf(ctx, a.cfg.Redis, guard.Key)
	if err != nil {
		return err
	}
	if node == nil {
		err = a.old.states.Depart(ctx, nil, a.out(), guard)
		a.marked = err == nil
		return err
	}
	conn := node.Conn() // WAIT is about the writes of its connection
	defer conn.Close()
	if err = a.old.states.Depart(ctx, conn, a.out(), guard); err != nil {
		return err
	}
	a.marked = true
	replication, err := conn.Info(ctx).Result() // the embedded Redis of tests refuses the section
	if err != nil || strings.Contains(replication, "connected_slaves:0") ||
		!strings.Contains(replication, "connected_slaves:") {
		return err
	}
	replicas, err := conn.Wait(ctx, 1, a.cfg.Confirm).Result()
	if err != nil {
		return err
	}
	if replicas == 0 {
		return events.Errorf(events.Retryable, events.ClassInternal,
			"no replica of the old cell's Redis has confirmed the mark within %v", a.cfg.Confirm)
	}
	return nil
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

// complete takes the steps after the commit point. known is the state in the old cell, which does not change any more.
func (a *attempt) complete(ctx context.Context, known state.Repo, lease *locking.Lease) error {
	there, err := a.new.states.Load(ctx, a.req.Repo)
	if err != nil {
		return err
	}
	if next, _, left := there.MovedToCell(); left && next.Epoch >= a.move.Epoch { // it was completed long ago
		return nil
	}
	from, came := there.From()
	active := came && from == (state.CellMove{Cell: a.old.Name, Epoch: a.move.Epoch})
	if !active { // again, as Redis may have lost the mark
		if err := a.new.states.Arrive(ctx, a.move, lease.Guard()); err != nil {
			return err
		}
	}
	if err := lease.Confirm(ctx); err != nil {
		return err
	}
	if err := a.flip(ctx); err != nil {
		return err
	}
	a.done("flipped")
	if active {
		return nil
	}
	byHand, err := a.cfg.Fetch(ctx, a.req.Repo, known)
	if err != nil {
		return fmt.Errorf("request the refs of %s: %w", a.req.Repo, err)
	}
	a.done("requested")
	if err := a.activate(ctx, known, lease, byHand); err != nil {
		return err
	}
	a.done("activated")
	return nil
}

// activate gives the new cell the watches and the state.
func (a *attempt) activate(ctx context.Context, known state.Repo, lease *locking.Lease, byHand bool) error {
	set, err := a.old.watches.Of(ctx, a.req.Repo)
	if err != nil {
		return err
	}
	if err := a.new.watches.Receive(ctx, set.Watches, a.move.ArrivingMark()); err != nil {
		return err
	}
	views, err := a.old.states.ViewsBelow(ctx, a.req.Repo, "")
	if err != nil {
		return err
	}
	fields := known.CarriedToCell()
	fields["fence"] = strconv.FormatUint(lease.Fence(), 10)
	fields["repo"] = cmp.Or(known.Path(), a.req.Repo.String())
	fetches := byHand || len(set.Watches) > 0
	return a.new.states.Activate(ctx, a.move, lease.Guard(), fields, views, fetches)
}

// flip places the repository in the new cell.
func (a *attempt) flip(ctx context.Context) error {
	if _, err := a.cfg.Directory.Flip(ctx, a.req.Repo, a.old.Name, a.new.Name); err != nil && !a.isPlaced() {
		return fmt.Errorf("place %s in cell %s: %w", a.req.Repo, a.new.Name, err)
	}
	if a.req.Pin {
		if _, err := a.cfg.Directory.Pin(ctx, a.req.Repo, a.new.Name); err != nil {
			return fmt.Errorf("pin %s: %w", a.req.Repo, err)
		}
	}
	return nil
}

// isPlaced reports whether the directory places the repository in the new cell, which a repeated Flip refuses
// once the weights do.
func (a *attempt) isPlaced() bool { return a.cfg.Directory.Place(a.req.Repo).Name == a.new.Name }

// abandon ends a move that is refused, or not wanted any more.
func (a *attempt) abandon(ctx context.Context) error {
	if a.new.states == nil {
		return nil
	}
	return a.here(ctx, 0, func(ctx context.Context, lease *locking.Lease) error {
		known, err := a.new.states.Load(ctx, a.req.Repo)
		if err != nil {
			return err
		}
		arriving, ok := known.Arriving()
		if !ok || arriving.Cell != a.req.From { // another attempt may have completed the move
			return nil
		}
		a.move.Epoch = arriving.Epoch
		return a.new.states.Abandon(ctx, a.move, lease.Guard())
	})
}
