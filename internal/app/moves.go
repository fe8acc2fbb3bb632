package app

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/cells/move"
	"lockstep/internal/state"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
	"lockstep/locking"
)

// moves is what a worker does for moves between cells: it moves repositories to its cell, cleans up after
// those that have left, and requests the moves that a change of weights needs.
type moves struct {
	cfg    Config
	redis  redis.UniversalClient
	pubsub redis.UniversalClient
	volume *volume.Volume
	locker *locking.Locker
}

// run works until ctx is done.
func (m moves) run(ctx context.Context) {
	step := func(name string, _ events.RepoPath) {
		if m.cfg.Step != nil {
			m.cfg.Step("move " + name)
		}
	}
	mover, err := move.New(move.Config{
		Cell: m.cfg.Cell, Directory: m.cfg.cells, Redis: m.redis, PubSub: m.pubsub, Volume: m.volume, Locker: m.locker,
		Worker: m.cfg.Worker, Fetch: m.fetch, Lease: m.cfg.Lease, Wait: m.cfg.LockWait, Step: step, Log: m.cfg.Log,
	})
	if err != nil {
		m.cfg.Log.ErrorContext(ctx, "moves between cells do not run", "error", err)
		return
	}
	retirer := move.Retirer{
		Cell: m.cfg.Cell, Directory: m.cfg.cells, Redis: m.redis, Volume: m.volume, Locker: m.locker,
		Grace: m.cfg.TreeGrace, Step: step, Log: m.cfg.Log,
	}
	var running sync.WaitGroup
	running.Go(func() { mover.Run(ctx) })
	running.Go(func() { retirer.Run(ctx) })
	running.Go(func() { runEvery(ctx, planEvery, func() { m.plan(ctx) }) })
	running.Wait()
}

// fetch requests syncs of the refs that were published and that not only watches have requested, and then a poll, which
// requests those of watched refs. If several credentials were used for such a ref, it waits for its next change: it
// is unknown which app has which. It reports whether there are such syncs.
func (m moves) fetch(ctx context.Context, repo events.RepoPath, known state.Repo) (byHand bool, err error) {
	var changes []events.Change
	for _, given := range known.AllGiven() {
		ref, err := events.ParseRef(given.Ref)
		if err != nil || known.Head(ref) == "" || known.OnlyWatched(ref) {
			continue
		}
		if change, ok := resync(known, given.App, ref); ok {
			change.Repo = repo
			changes = append(changes, change)
		}
	}
	byHand = len(changes) > 0
	for _, change := range append(changes, events.Change{Type: events.ChangeDue, Repo: repo}) {
		change.Source = "/lockstep/worker/" + m.cfg.Worker
		change, err := events.NewChange(change)
		if err == nil {
			err = PublishChange(ctx, m.redis, m.cfg.Namespace(), change)
		}
		if err != nil {
			return byHand, err
		}
	}
	return byHand, nil
}

// resync returns a change that requests again what an app has been given.
func resync(known state.Repo, app string, ref events.Ref) (events.Change, bool) {
	credential, answer, ok := known.Source(ref)
	if !ok {
		return events.Change{}, false
	}
	change := events.Change{URL: answer.URL, Ref: ref, App: app, Credential: credential}
	head := known.Head(ref)
	if answer, ok := known.RemoteRef(answer.URL, events.Ref{}, credential); ok && answer.Ref == ref {
		change.Ref = events.Ref{} // the default branch
	}
	if head != answer.Commit { // it was pinned
		change.After, change.Pin = head, true
	}
	return change, true
}

const (
	planEvery = 5 * time.Second
	planClaim = time.Minute // one worker of a cell plans at a time
	planShare = 20          // going through the repositories takes at most one part in so many of the time
)

// plan requests the moves of the repositories of this cell that shall be in another one. When no cell has any
// left, the new weights take effect.
func (m moves) plan(ctx context.Context) {
	directory := m.cfg.cells
	if !directory.Pending() { // perhaps because the weights were changed back
		_ = m.redis.Del(ctx, leavingKey(m.cfg.Namespace())).Err() // else it expires
		return
	}
	began := time.Now()
	claimed, err := m.redis.SetNX(ctx, m.cfg.Namespace().Rebalance(), m.cfg.Worker, planClaim).Result()
	if err != nil || !claimed {
		return
	}
	defer func() { // a failure delays the next plan to the end of the claim
		_ = m.redis.PExpire(context.WithoutCancel(ctx), m.cfg.Namespace().Rebalance(),
			max(planEvery/2, planShare*time.Since(began))).Err()
	}()
	earlier, err := readLeaving(ctx, m.redis, m.cfg.Namespace())
	var left map[string]int
	if err == nil {
		left, err = m.request(ctx)
	}
	now := earlier.next(left, time.Now())
	if err == nil {
		err = now.write(ctx, m.redis, m.cfg.Namespace())
	}
	if err != nil {
		m.cfg.Log.WarnContext(ctx, "moves to other cells cannot be planned, will retry", "error", err)
		return
	}
	if n := now.total(); n > 0 {
		all := movesLeft(n, now.pace())
		m.cfg.Log.InfoContext(ctx, "repositories are to be moved to other cells", "left", n,
			"estimate", time.Duration(all.Seconds)*time.Second)
		return
	}
	plan, err := PlanCells(ctx, m.redis, directory, nil)
	if err == nil && plan.Empty() {
		if err = directory.Settle(ctx, plan.Epoch); err == nil {
			m.cfg.Log.InfoContext(ctx, "all repositories are in the cells where the weights place them", "repositories", plan.Repos)
		}
	}
	if err != nil && !errors.Is(err, cells.ErrChanged) {
		m.cfg.Log.WarnContext(ctx, "end of the moves between cells cannot be established, will retry", "error", err)
	}
}

// request requests the moves of repositories of this cell, and returns how many are left to move to each cell.
func (m moves) request(ctx context.Context) (left map[string]int, err error) {
	directory := m.cfg.cells
	if err := directory.Refresh(ctx); err != nil {
		return nil, err
	}
	left = map[string]int{}
	queues, epoch := map[string]*move.Queue{}, directory.Epoch()
	for repo, err := range Repositories(ctx, m.redis, cells.Member{Name: m.cfg.Cell, Namespace: m.cfg.Namespace()}) {
		if err != nil {
			return left, err
		}
		target := directory.Target(repo)
		if directory.Place(repo).Name != m.cfg.Cell || target.Name == m.cfg.Cell || target.Name == "" {
			continue
		}
		left[target.Name]++
		queue := queues[target.Name]
		if queue == nil {
			queue = move.NewQueue(m.redis, target.Prefix)
			queues[target.Name] = queue
		}
		if _, err := queue.Request(ctx, move.Request{Repo: repo, From: m.cfg.Cell, Epoch: epoch}, false); err != nil {
			return left, err
		}
	}
	return left, nil
}

// IsKnown reports whether a cell has a repository: a state of it, or a watch.
func IsKnown(ctx context.Context, client redis.UniversalClient, cell cells.Member, repo events.RepoPath) (bool, error) {
	known, err := state.NewStore(client, cell.Namespace).Load(ctx, repo)
	if err != nil || !known.IsZero() {
		return true, err
	}
	set, err := watch.NewRegistry(client, cell.Namespace).Of(ctx, repo)
	return len(set.Watches) > 0, err
}
