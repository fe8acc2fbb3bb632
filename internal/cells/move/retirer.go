package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/cells"
	"lockstep/internal/notify"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// Retirer completes moves from its cell that other processes have begun, and cleans up after repositories that have
// left it: see the package documentation. Any number of processes may run one. All fields are required.
type Retirer struct {
	*Mover
	Cell   string
	Volume *volume.Volume  // of Cell
	Locker *locking.Locker // of Cell
	Grace  time.Duration   // of replaced trees: the old names stay for twice that
}

const (
	retireEvery   = time.Second // interval of looking for work
	retireAtOnce  = 100
	retireAgain   = time.Second // after which a step that has to wait is tried again; apps may take long to acknowledge
	completeAgain = 5 * time.Second
	retireLater   = time.Minute // after an error
)

// Run works until ctx is done.
func (r Retirer) Run(ctx context.Context) {
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { r.loop(ctx, events.Namespace.Departing, r.resume) }) // which may wait for leases
	r.loop(ctx, events.Namespace.Departed, r.retire)
}

// loop does what is due for the repositories of a sorted set until ctx is done.
func (r Retirer) loop(ctx context.Context, key func(events.Namespace) string, fn duty) {
	for ctx.Err() == nil {
		self, ok := r.Directory.Cell(r.Cell)
		err := cells.ErrNoCell
		if ok {
			err = r.each(ctx, key(self.Prefix), self, fn)
		}
		if err != nil && ctx.Err() == nil {
			r.Log.WarnContext(ctx, "cannot clean up after repositories that moved to other cells, will retry", "error", err)
		}
		select {
		case <-time.After(retireEvery):
		case <-ctx.Done():
		}
	}
}

// duty returns when the next one of the repository is due, 0 if there is none.
type duty func(ctx context.Context, self cells.Cell, repo events.RepoPath) (next time.Duration, err error)

// each takes the steps of the repositories of a sorted set that are due.
func (r Retirer) each(ctx context.Context, key string, self cells.Cell, fn duty) error {
	now, err := stream.Time(ctx, r.Redis, key)
	if err != nil {
		return err
	}
	due, err := r.Redis.ZRangeByScore(ctx, key, &redis.ZRangeBy{
		Min: "-inf", Max: fmt.Sprint(now.UnixMilli()), Count: retireAtOnce,
	}).Result()
	if err != nil {
		return fmt.Errorf("find repositories that have left: %w", err)
	}
	for _, member := range due {
		repo, err := events.ParseRepoPath(member)
		if err != nil {
			return fmt.Errorf("invalid repository %.100q in %s: %w", member, key, err)
		}
		next, err := fn(ctx, self, repo)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, locking.ErrHeld):
			next = retireAgain
		case err != nil:
			r.Log.WarnContext(ctx, "cannot clean up after a repository that moved to another cell, will retry",
				"repo", member, "error", err)
		}
		if next == 0 {
			continue
		}
		again := redis.Z{Score: float64(now.Add(next).UnixMilli()), Member: member}
		if err := r.Redis.ZAddXX(ctx, key, again).Err(); err != nil { // only if it is still there: it may have come back
			return err
		}
	}
	return nil
}

// resume completes a move whose mark is here.
func (r Retirer) resume(ctx context.Context, self cells.Cell, repo events.RepoPath) (next time.Duration, err error) {
	known, err := state.NewStore(r.Redis, self.Prefix).Load(ctx, repo)
	if err != nil {
		return completeAgain, err
	}
	move, _, departed := known.MovedToCell()
	if !departed {
		return 0, r.Redis.ZRem(ctx, self.Prefix.Departing(), repo.Key()).Err()
	}
	move.Repo = repo
	if err := r.Directory.Refresh(ctx); err != nil {
		return completeAgain, err
	}
	if to, ok := r.Directory.Cell(move.Cell); !ok || to.State == cells.Gone {
		return completeAgain, fmt.Errorf("%s is to move to cell %s: %w", repo, move.Cell, cells.ErrNoCell)
	}
	a, err := r.attempt(move, self.Name)
	if err != nil {
		return completeAgain, err
	}
	a.resumes = true
	return completeAgain, a.run(ctx) // there is no next step if it succeeds
}

// retire does what is next for a repository whose move is complete.
func (r Retirer) retire(ctx context.Context, self cells.Cell, repo events.RepoPath) (next time.Duration, err error) {
	floor, err := r.Volume.Floor(repo)
	if err != nil {
		return retireLater, err
	}
	next = retireLater // after an error
	request := locking.Request{Key: repo.Key(), Job: "departed", Operation: "move", IfHeld: locking.Skip, Floor: floor}
	err = r.Locker.Do(ctx, request, func(ctx context.Context, lease *locking.Lease) error {
		states := state.NewStore(r.Redis, self.Prefix)
		known, err := states.Load(ctx, repo)
		if err != nil {
			return err
		}
		move, last, departed := known.MovedToCell()
		move.Repo = repo
		if !departed { // it has come back
			return r.Redis.ZRem(ctx, self.Prefix.Departed(), repo.Key()).Err()
		}
		if known.IsVacated() {
			return r.remove(ctx, self, repo, lease)
		}
		ready, err := r.isReady(ctx, self, move, last)
		if err != nil {
			return err
		}
		if !ready {
			next = retireAgain
			return nil
		}
		if err := watch.NewRegistry(r.Redis, self.Prefix).Release(ctx, repo, move.MovedMark()); err != nil {
			return err
		}
		if err := states.Vacate(ctx, move, lease.Guard()); err != nil {
			return err
		}
		r.step("released", repo)
		next = max(2*r.Grace, time.Millisecond)
		return nil
	})
	return next, err
}

// remove removes what is left on the volume. Pinned trees stay, and are removed by a later call.
func (r Retirer) remove(ctx context.Context, self cells.Cell, repo events.RepoPath, lease *locking.Lease) error {
	_, err := r.Volume.Remove(ctx, volume.RemoveRequest{
		Repo: repo, Fence: lease.Fence(), Force: true, Confirm: lease.Confirm,
	})
	if err != nil {
		return err
	}
	if err := r.Redis.ZRem(ctx, self.Prefix.Departed(), repo.Key()).Err(); err != nil {
		return err
	}
	r.step("removed", repo)
	r.Log.InfoContext(ctx, "files of a repository that moved to another cell removed", "repo", repo.String())
	return nil
}

// isReady reports whether the watches, the state and the names of a repository that has left can go: the new
// cell has published it, or it has left that one too, and apps have got the results of this one. If Redis has lost
// what the move has written, it has the move completed again.
func (r Retirer) isReady(
	ctx context.Context, self cells.Cell, move state.CellMove, last string,
) (bool, error) {
	to, ok := r.Directory.Cell(move.Cell)
	if !ok || to.State == cells.Gone {
		return false, fmt.Errorf("%s was moved to cell %s: %w", move.Repo, move.Cell, cells.ErrNoCell)
	}
	there, err := state.NewStore(r.Redis, to.Prefix).Load(ctx, move.Repo)
	if err != nil {
		return false, err
	}
	from, came := there.From()
	next, _, leftAgain := there.MovedToCell()
	switch {
	case leftAgain && next.Epoch >= move.Epoch:
	case !came || from.Cell != self.Name || from.Epoch != move.Epoch || r.Directory.Place(move.Repo).Name == self.Name:
		return false, r.Redis.ZAdd(ctx, self.Prefix.Departing(), redis.Z{Member: move.Repo.Key()}).Err()
	case there.NeedsOther():
		return false, nil
	}
	set, err := watch.NewRegistry(r.Redis, self.Prefix).Of(ctx, move.Repo)
	if err != nil {
		return false, err
	}
	if !slices.ContainsFunc(set.Watches, func(w watch.Watch) bool { return w.NotifyURL != "" }) {
		last = "" // apps without a URL may have a command; whether a notifier still runs them, only their outboxes tell
	}
	return notify.Outboxes{Redis: r.Redis, Namespace: self.Prefix}.AllSent(ctx, move.Repo, last)
}
