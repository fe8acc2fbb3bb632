package move

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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

// Retirer cleans up after repositories that have left its cell: see the package documentation. Any number of
// processes may run one. All fields but Every and Step are required.
type Retirer struct {
	Cell      string
	Directory *cells.Directory
	Redis     redis.UniversalClient // for the keys of all cells
	Volume    *volume.Volume        // of Cell
	Locker    *locking.Locker       // of Cell
	Grace     time.Duration         // of replaced trees: the old names stay for twice that
	Every     time.Duration         // interval of looking for work; 1 s

	Step func(name string, repo events.RepoPath) // called after each step, for crash tests; optional
	Log  *slog.Logger
}

const (
	retireAtOnce = 100
	retireAgain  = time.Second // after which a step that has to wait is tried again; apps may take long to acknowledge
	retireLater  = time.Minute // after an error
)

// Run cleans up until ctx is done.
func (r Retirer) Run(ctx context.Context) {
	every := r.Every
	if every == 0 {
		every = time.Second
	}
	for ctx.Err() == nil {
		if err := r.once(ctx); err != nil && ctx.Err() == nil {
			r.Log.WarnContext(ctx, "cannot clean up after repositories that moved to other cells, will retry", "error", err)
		}
		pause(ctx, every)
	}
}

// once does what is due.
func (r Retirer) once(ctx context.Context) error {
	self, ok := r.Directory.Cell(r.Cell)
	if !ok {
		return cells.ErrNoCell
	}
	now, err := stream.Time(ctx, r.Redis, self.Prefix.Departed())
	if err != nil {
		return err
	}
	due, err := r.Redis.ZRangeByScore(ctx, self.Prefix.Departed(), &redis.ZRangeBy{
		Min: "-inf", Max: fmt.Sprint(now.UnixMilli()), Count: retireAtOnce,
	}).Result()
	if err != nil {
		return fmt.Errorf("find repositories that have left: %w", err)
	}
	for _, key := range due {
		repo, err := events.ParseRepoPath(key)
		if err != nil {
			return fmt.Errorf("invalid repository %.100q in %s: %w", key, self.Prefix.Departed(), err)
		}
		next, err := r.retire(ctx, self, repo)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, locking.ErrHeld):
			next = retireAgain
		case err != nil:
			next = retireLater
			r.Log.WarnContext(ctx, "cannot clean up after a repository that moved to another cell, will retry",
				"repo", key, "error", err)
		}
		if next > 0 { // only if it is still there: it may have come back
			err = r.Redis.ZAddXX(ctx, self.Prefix.Departed(),
				redis.Z{Score: float64(now.Add(next).UnixMilli()), Member: key}).Err()
		}
		if next > 0 && err != nil {
			return err
		}
	}
	return nil
}

// retire does what is next for a repository, and returns after which time the following step is due, 0 if
// there is none.
func (r Retirer) retire(ctx context.Context, self cells.Cell, repo events.RepoPath) (next time.Duration, err error) {
	floor, err := r.Volume.Floor(repo)
	if err != nil {
		return 0, err
	}
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
		if err != nil || !ready {
			next = retireAgain
			return err
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

func (r Retirer) step(name string, repo events.RepoPath) {
	if r.Step != nil {
		r.Step(name, repo)
	}
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
// cell has published it, or it has left that one too, and apps have got the results of this one. If the new
// cell does not work on it, it makes sure that the move is completed.
func (r Retirer) isReady(
	ctx context.Context, self cells.Cell, move state.CellMove, last string,
) (bool, error) {
	to, ok := r.Directory.Cell(move.Cell)
	if !ok {
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
	case !came || from.Cell != self.Name || from.Epoch != move.Epoch:
		_, err := NewQueue(r.Redis, to.Prefix).Request(ctx,
			Request{Repo: move.Repo, From: self.Name, Epoch: move.Epoch}, false)
		return false, err
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
