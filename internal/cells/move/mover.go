package move

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/state"
	"lockstep/internal/watch"
)

// Mover moves repositories between cells. Any number of processes may use one. It is safe for concurrent use.
type Mover struct {
	Directory *cells.Directory      // required
	Redis     redis.UniversalClient // for the keys of all cells; must not retry by itself; required
	PubSub    redis.UniversalClient // defaults to Redis
	Worker    string                // name of this process

	Lease time.Duration // of the leases; 10 s
	Wait  time.Duration // for a lease; 60 s

	Step func(name string, repo events.RepoPath) // called after each step, for crash tests; optional
	Log  *slog.Logger                            // required
}

// confirmWait is how long to wait until a replica has the mark.
const confirmWait = 5 * time.Second

// hold is how long after the mark other processes leave the rest of a move to that which has begun it.
func (m *Mover) hold() time.Duration { return cmp.Or(m.Lease, 10*time.Second) }

func (m *Mover) step(name string, repo events.RepoPath) {
	if m.Step != nil {
		m.Step(name, repo)
	}
}

// Move moves a repository from one cell to another, or completes a move that was begun. Unless pin is set, for a
// repository that stays in the new cell whatever the weights, it returns an error that wraps [cells.ErrChanged] if the
// weights place it elsewhere. It is safe to repeat. If it fails after the mark, a [Retirer] of the old cell goes on.
func (m *Mover) Move(ctx context.Context, repo events.RepoPath, from, to string, pin bool) error {
	began := time.Now()
	if err := m.Directory.Refresh(ctx); err != nil {
		return err
	}
	a, err := m.attempt(state.CellMove{Repo: repo, Cell: to, Epoch: m.Directory.Epoch(), Pin: pin}, from)
	if err != nil {
		return err
	}
	if err := a.run(ctx); err != nil {
		return err
	}
	m.Log.InfoContext(ctx, "repository moved to another cell", "repo", repo.String(), "from", from, "to", to,
		"took", time.Since(began))
	return nil
}

// attempt returns an attempt at a move from a cell, as that cell records it.
func (m *Mover) attempt(move state.CellMove, from string) (*attempt, error) {
	old, err := m.open(from)
	if err != nil {
		return nil, err
	}
	target, err := m.open(move.Cell)
	return &attempt{Mover: m, move: move, old: old, new: target}, err
}

// cell is what a move reads and writes of a cell in Redis.
type cell struct {
	cells.Cell
	states  *state.Store
	watches *watch.Registry
}

func (m *Mover) open(name string) (cell, error) {
	c, ok := m.Directory.Cell(name)
	if !ok {
		return cell{}, events.Errorf(events.Permanent, events.ClassConfig, "cell %s: %w", name, cells.ErrNoCell)
	}
	return cell{c, state.NewStore(m.Redis, c.Prefix), watch.NewRegistry(m.Redis, c.Prefix)}, nil
}
