package app

import (
	"context"
	"errors"
	"sync"
	"time"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/redisx"
	"lockstep/internal/state"
	"lockstep/locking"
)

// gone forgets repositories that are gone, also those that never existed. One is gone once, for the safe time,
//
//	no watch has named it                     the registry
//	nobody has held its lease                 the fences in Redis and on the volume, which are times of Redis' clock
//	it has had no tree, object or clone       the volume
//	it has had no dead change                 the dead letters
//	no change of it has waited                those parked for it; and none at all is unread or in flight for so long
//
// Then its folder and its keys are deleted under its lease, the lock of that with them. Package volume says why nobody
// who held it before can do harm after that. A redirect, the record of a removal and failures end with the state.
type gone struct {
	gc
	since time.Time                       // the safe time ago, by Redis' clock
	dead  func() (map[string]bool, error) // the keys of repositories with dead changes
}

// goneAfter returns the safe time.
func goneAfter(cfg Config) time.Duration { return max(10*max(cfg.Lease, cfg.TreeGrace), time.Minute) }

const mostForgotten = 10_000 // per garbage collection

// forgetGone forgets repositories that are gone, and returns how many.
func (g gc) forgetGone(ctx context.Context) (forgotten int, err error) {
	id := g.volume.ID()
	if err := checkVolume(g.volume.Root(), &id); err != nil {
		return 0, err // one that is not mounted has no repositories
	}
	now, err := stream.Time(ctx, g.redis, g.namespace.GC())
	if err != nil {
		return 0, err
	}
	all := gone{g, now.Add(-g.safe), sync.OnceValues(func() (map[string]bool, error) { return g.deadRepos(ctx) })}
	forget := func(repo events.RepoPath, err error) (goOn bool) {
		done := false
		if err == nil {
			done, err = all.forget(ctx, repo)
		}
		if done {
			forgotten++
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, locking.ErrHeld) {
			g.log.WarnContext(ctx, "cannot forget a repository that is gone", "repo", repo, "error", err)
		}
		return forgotten < mostForgotten && ctx.Err() == nil && !redisx.Unavailable(err)
	}
	g.volume.Repos()(forget) // usually, what a Redis that has lost its data does not know
	for page := (state.Page{}); ; {
		if page, err = g.states.List(ctx, "", page.Next, 1000); err != nil {
			return forgotten, err
		}
		for _, known := range page.Repos {
			if repo, err := events.ParseRepoPath(known.Repo); err == nil && !forget(repo, nil) {
				return forgotten, nil
			}
		}
		if page.Next == 0 {
			return forgotten, nil
		}
	}
}

// forget forgets a repository if it is gone.
func (g gone) forget(ctx context.Context, repo events.RepoPath) (forgotten bool, err error) {
	if isGone, err := g.volume.IsGone(repo); err != nil || !isGone {
		return false, err
	}
	floor, err := g.volume.Floor(repo)
	if err != nil {
		return false, err
	}
	if unused, err := g.states.Unused(ctx, repo, floor, g.since); err != nil || !unused {
		return false, err
	}
	if dead, err := g.dead(); err != nil || dead[repo.Key()] {
		return false, err
	}
	waits, err := stream.Waits(ctx, g.redis, string(g.namespace), g.namespace.Changes(), events.WorkersGroup, repo.Key(),
		g.since)
	if err != nil || waits {
		return false, err
	}
	request := locking.Request{Key: repo.Key(), Job: "gc", Operation: "gc", IfHeld: locking.Skip, Floor: floor}
	err = g.locker.Do(ctx, request, func(ctx context.Context, lease *locking.Lease) error {
		if gone, err := g.volume.Forget(ctx, repo, lease.Fence()); err != nil || !gone {
			return err
		}
		forgotten, err = g.states.Forget(ctx, repo, lease.Guard())
		return err
	})
	return forgotten, err
}

// deadRepos returns the keys of the repositories with dead changes.
func (g gc) deadRepos(ctx context.Context) (map[string]bool, error) {
	letters, repos := stream.NewDeadLetters(g.redis, string(g.namespace)), map[string]bool{}
	all := stream.Query{Match: func(l stream.Letter) bool {
		msg, err := l.Message()
		if err != nil {
			return false
		}
		if change, err := events.ParseChange(msg.Payload); err == nil {
			repos[change.Repo.Key()], repos[change.To.Key()] = true, true
		}
		return false
	}}
	for {
		_, next, err := letters.List(ctx, all)
		if err != nil || next == "" {
			return repos, err
		}
		all.After = next
	}
}
