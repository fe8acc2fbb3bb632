package availability

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/gitserver"
	"lockstep/internal/redisx"
)

const (
	killEvery = 2 * time.Second
	gcEvery   = 1500 * time.Millisecond
)

// workers are two lockstep processes, which are killed in turn.
type workers struct {
	*turn
	env      *rig.Env
	side     rig.Side
	redis    *rig.Redis
	follower *rig.Follower
	running  [2]*rig.Service
	pushes   []*rig.Wait

	killed, gcs int
}

// startWorkers starts the workers, and returns once they have published the repository.
func startWorkers(ctx context.Context, t *turn, env *rig.Env, side rig.Side) (_ syncer, err error) {
	s := &workers{turn: t, env: env, side: side}
	if s.redis, err = env.OpenRedis(ctx); err != nil {
		return nil, err
	}
	if s.follower, err = env.Follow(ctx, s.redis); err != nil {
		return nil, err
	}
	for i := range s.running {
		if s.running[i], err = s.start(ctx); err != nil {
			return nil, err
		}
	}
	first, err := s.follower.Publish(ctx, events.Change{URL: t.git.URL(t.repo), After: t.git.Head(t.repo, "refs/heads/"+gitserver.Main)})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, rig.RoundGrace, errors.New("the workers publish nothing"))
	defer cancel()
	_, err = first.Await(ctx)
	return s, err
}

func (s *workers) root() string { return filepath.Join(s.dir, "root") }

func (s *workers) start(ctx context.Context) (*rig.Service, error) {
	return s.env.Serve(ctx, s.side, s.redis, s.root(), "--roles", config.RoleWorker, "--lease", "1s", "--tree-grace", "5s")
}

func (s *workers) published() string { return filepath.Join(s.root(), filepath.FromSlash(s.repo)) }

func (s *workers) pushed(ctx context.Context, commit string) error {
	push, err := s.follower.Publish(ctx, events.Change{URL: s.git.URL(s.repo), After: commit})
	s.pushes = append(s.pushes, push)
	return err
}

// run has workers killed, and compacts the store in between.
func (s *workers) run(ctx context.Context) error {
	g, during := errgroup.WithContext(ctx)
	g.Go(func() error { return s.killInTurn(during) })
	g.Go(func() error { return s.collect(during) })
	return g.Wait()
}

func (s *workers) killInTurn(during context.Context) (err error) {
	for redisx.Pause(during, killEvery) {
		i := s.killed % len(s.running)
		if err := s.running[i].Kill(); err != nil {
			return err
		}
		s.killed++
		if s.running[i], err = s.start(context.WithoutCancel(during)); err != nil { // killed at the end of the run
			return err
		}
	}
	return nil
}

func (s *workers) collect(during context.Context) error {
	for redisx.Pause(during, gcEvery) {
		gc, err := s.env.StartBinary(during, s.side.Path, "repos", "gc", s.repo, "--redis", s.redis.URL, "--root", s.root(), "--lease", "1s", "--tree-grace", "5s")
		if err == nil {
			err = gc.Wait()
		}
		if during.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		s.gcs++
	}
	return nil
}

func (s *workers) report(result *Result) {
	result.Killed, result.GCs = s.killed, s.gcs
	commits := map[string]bool{}
	for _, push := range s.pushes {
		switch {
		case !push.Answered():
		case push.Result.Type == events.ResultSynced:
			commits[push.Result.After] = true
		default:
			result.Failed++
		}
	}
	result.Syncs = len(commits)
}
