package app

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/cells/move"
	"lockstep/internal/operate"
	"lockstep/internal/redisx"
	"lockstep/internal/volume"
	"lockstep/locking"
)

// moves is what a worker does for moves between cells: it moves the repositories of its cell that a change of weights
// places in another one, and cleans up after those that have left.
type moves struct {
	cfg   Config
	redis redis.UniversalClient
	mover *move.Mover
}

// runMoves works until ctx is done.
func runMoves(
	ctx context.Context, cfg Config, commands, pubsub redis.UniversalClient, vol *volume.Volume, locker *locking.Locker,
) {
	step := func(name string, _ events.RepoPath) {
		if cfg.Step != nil {
			cfg.Step("move " + name)
		}
	}
	mover := &move.Mover{
		Directory: cfg.cells, Redis: commands, PubSub: pubsub, Worker: cfg.Worker, Lease: cfg.Lease, Wait: cfg.LockWait,
		Step: step, Log: cfg.Log,
	}
	retirer := move.Retirer{Mover: mover, Cell: cfg.Cell, Volume: vol, Locker: locker, Grace: cfg.TreeGrace}
	var running sync.WaitGroup
	running.Go(func() { retirer.Run(ctx) })
	m := moves{cfg: cfg, redis: commands, mover: mover}
	running.Go(func() { runEvery(ctx, planEvery, func() { m.plan(ctx) }) })
	running.Wait()
}

const (
	planEvery = 5 * time.Second
	planClaim = time.Minute // one worker of a cell plans at a time
	planShare = 20          // going through the repositories takes at most one part in so many of the time

	movesAtOnce  = 4
	moveInterval = 100 * time.Millisecond // between the begins of two moves
)

// plan moves the repositories of this cell that shall be in another one. When no cell has any left, the new weights
// take effect.
func (m moves) plan(ctx context.Context) {
	directory := m.cfg.cells
	if !directory.Pending() {
		return
	}
	began := time.Now()
	claimed, err := m.redis.SetNX(ctx, m.cfg.Namespace().Rebalance(), m.cfg.Worker, planClaim).Result()
	if err != nil || !claimed {
		return
	}
	var searched time.Duration
	defer func() { // a failure delays the next plan to the end of the claim
		_ = m.redis.PExpire(context.WithoutCancel(ctx), m.cfg.Namespace().Rebalance(),
			max(planEvery/2, planShare*searched)).Err()
	}()
	left, err := m.leaving(ctx)
	searched = time.Since(began)
	if err == nil {
		err = m.moveAll(ctx, left)
	}
	if err != nil {
		m.cfg.Log.WarnContext(ctx, "repositories cannot be moved to other cells, will retry", "error", err)
	}
	if err != nil || len(left) > 0 {
		return
	}
	plan, err := PlanCells(ctx, m.redis, directory)
	if err == nil && plan.Empty() {
		if err = directory.Settle(ctx, plan.Epoch); err == nil {
			m.cfg.Log.InfoContext(ctx, "all repositories are in the cells where the weights place them", "repositories", plan.Repos)
		}
	}
	if err != nil && !errors.Is(err, cells.ErrChanged) {
		m.cfg.Log.WarnContext(ctx, "end of the moves between cells cannot be established, will retry", "error", err)
	}
}

// leaving returns the repositories of this cell that shall be in another one.
func (m moves) leaving(ctx context.Context) (left []events.RepoPath, err error) {
	if err := m.cfg.cells.Refresh(ctx); err != nil {
		return nil, err
	}
	for repo, err := range Repositories(ctx, m.redis, cells.Member{Name: m.cfg.Cell, Namespace: m.cfg.Namespace()}) {
		if err != nil {
			return nil, err
		}
		if _, leaves := m.target(repo); leaves {
			left = append(left, repo)
		}
	}
	return left, nil
}

// target returns the cell to which a repository of this one is to be moved, or false.
func (m moves) target(repo events.RepoPath) (to string, leaves bool) {
	to = m.cfg.cells.Target(repo).Name
	return to, m.cfg.cells.Place(repo).Name == m.cfg.Cell && to != m.cfg.Cell && to != ""
}

// moveAll tries to move each of the repositories once.
func (m moves) moveAll(ctx context.Context, repos []events.RepoPath) error {
	var mu sync.Mutex
	report := operate.MovesLeft{Left: len(repos)}
	write := func() error {
		mu.Lock()
		defer mu.Unlock()
		return errors.Join(report.Write(ctx, m.redis, m.cfg.Namespace()),
			m.redis.PExpire(ctx, m.cfg.Namespace().Rebalance(), planClaim).Err())
	}
	if len(repos) > 0 {
		m.cfg.Log.InfoContext(ctx, "repositories are to be moved to other cells", "left", len(repos))
	}
	var running errgroup.Group
	running.SetLimit(movesAtOnce)
	for _, repo := range repos {
		to, leaves := m.target(repo)
		if !leaves { // the weights have changed, or it was moved by hand
			mu.Lock()
			report.Left--
			mu.Unlock()
			continue
		}
		if err := write(); err != nil {
			return errors.Join(err, running.Wait())
		}
		running.Go(func() error {
			err := m.mover.Move(ctx, repo, m.cfg.Cell, to, false)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil, errors.Is(err, cells.ErrChanged):
				report.Left--
			case ctx.Err() == nil:
				m.cfg.Log.WarnContext(ctx, "repository not moved to another cell, will retry", "repo", repo.String(), "to", to,
					"error", err)
				report.Fail(operate.FailedMove{Repo: repo.String(), From: m.cfg.Cell, To: to, Error: err.Error()})
			}
			return nil
		})
		if !redisx.Pause(ctx, moveInterval) {
			break
		}
	}
	_ = running.Wait() // errors are in the report
	return write()
}
