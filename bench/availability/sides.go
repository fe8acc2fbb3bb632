package availability

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/gitserver"
)

// resetters are workers that all reset one clone in place after each push.
type resetters struct {
	dir    string                         // the clone
	guard  func(reset func() error) error // calls reset, under a file lock or not
	wanted []chan struct{}                // one for each worker, with room for one announcement

	mu      sync.Mutex
	commits map[string]bool
	failed  int
}

// startResets clones the repository. With locked, one worker at a time resets the clone.
func startResets(ctx context.Context, t *turn, locked bool) (syncer, error) {
	s := &resetters{dir: filepath.Join(t.dir, "clone"), commits: map[string]bool{}, wanted: make([]chan struct{}, t.workers)}
	s.guard = func(reset func() error) error { return reset() }
	if locked {
		s.guard = func(reset func() error) error { return rig.WithFileLock(filepath.Join(t.dir, "guard"), reset) }
	}
	for i := range s.wanted {
		s.wanted[i] = make(chan struct{}, 1)
	}
	return s, rig.CloneWithGit(ctx, t.git.URL(t.repo), s.dir)
}

func (s *resetters) published() string { return s.dir }

func (s *resetters) pushed(context.Context, string) error {
	for _, wanted := range s.wanted {
		select {
		case wanted <- struct{}{}:
		default:
		}
	}
	return nil
}

func (s *resetters) run(ctx context.Context) error {
	var g errgroup.Group
	for _, wanted := range s.wanted {
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-wanted:
				}
				s.sync(ctx)
			}
		})
	}
	return g.Wait()
}

// sync fetches and resets, and records the outcome.
func (s *resetters) sync(ctx context.Context) {
	head := ""
	err := s.guard(func() (err error) {
		if _, err = gitserver.Git(ctx, s.dir, "", "fetch", "--quiet", "--depth", "1"); err != nil {
			return err
		}
		head, err = gitserver.Git(ctx, s.dir, "", "reset", "--hard", "FETCH_HEAD") // "HEAD is now at …"
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.commits[head] = true
	case ctx.Err() == nil: // otherwise the run has ended
		s.failed++
	}
}

func (s *resetters) report(_ context.Context, result *Result) error {
	result.Syncs, result.Failed = len(s.commits), s.failed
	return nil
}

const (
	killEvery  = 2 * time.Second
	stepWithin = 5 * time.Second // after the start of a worker that kills itself
	gcEvery    = 1500 * time.Millisecond
)

// workers are two lockstep processes. One is killed from time to time, the other one kills itself, at each step in turn. Another binary than
// this tree's has only the first.
type workers struct {
	*turn
	side       rig.Side
	deployment rig.Deployment
	first      string // commit, published before the run
	running    *rig.Process

	mu       sync.Mutex
	killed   int
	killedAt map[string]int // by step, those that killed themselves
	gcs      int
}

// startWorkers starts the workers, and returns once they have published the repository.
func startWorkers(ctx context.Context, t *turn, env *rig.Env, side rig.Side) (syncer, error) {
	server, err := env.OpenPrivateRedis(ctx)
	if err != nil {
		return nil, err
	}
	s := &workers{turn: t, side: side, first: t.git.Head(t.repo, "refs/heads/"+gitserver.Main), killedAt: map[string]int{}}
	s.deployment = rig.Deployment{Env: env, Redis: server, Root: filepath.Join(t.dir, "root")}
	if s.running, err = s.start(ctx); err != nil {
		return nil, err
	}
	return s, s.awaitFirst(ctx)
}

func (s *workers) start(ctx context.Context) (*rig.Process, error) {
	return s.lockstep(ctx, "serve", "--roles", config.RoleWorker)
}

func (s *workers) lockstep(ctx context.Context, args ...string) (*rig.Process, error) {
	return s.deployment.StartBinary(ctx, s.side.Path, s.deployment.Args(args...)...)
}

func (s *workers) published() string {
	return filepath.Join(s.deployment.Root, filepath.FromSlash(s.repo))
}

func (s *workers) pushed(ctx context.Context, commit string) error {
	_, err := rig.Publish(ctx, s.deployment.Redis.Client, events.DefaultNamespace, events.Change{URL: s.git.URL(s.repo), After: commit})
	return err
}

// awaitFirst waits until the first commit is published.
func (s *workers) awaitFirst(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, rig.RoundGrace, errors.New("the workers publish nothing"))
	defer cancel()
	if err := s.pushed(ctx, s.first); err != nil {
		return err
	}
	return rig.AwaitResults(ctx, s.deployment.Redis.Client, events.DefaultNamespace, 1, 10*time.Millisecond)
}

// run has workers killed, and compacts the store in between.
func (s *workers) run(ctx context.Context) error {
	g, during := errgroup.WithContext(ctx)
	g.Go(func() error { return s.killAtTimes(during) })
	if s.side.Name == rig.SideLockstep {
		g.Go(func() error { return s.dieInTurn(during) })
	}
	g.Go(func() error { return s.collect(during) })
	return g.Wait()
}

func (s *workers) killAtTimes(during context.Context) (err error) {
	for app.Sleep(during, killEvery) {
		if err := s.running.Kill(); err != nil {
			return err
		}
		s.mu.Lock()
		s.killed++
		s.mu.Unlock()
		if s.running, err = s.start(context.WithoutCancel(during)); err != nil { // killed at the end of the run
			return err
		}
	}
	return nil
}

func (s *workers) collect(during context.Context) error {
	for app.Sleep(during, gcEvery) {
		gc, err := s.lockstep(during, "repos", "gc", s.repo)
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

func (s *workers) report(ctx context.Context, result *Result) error {
	result.Killed, result.KilledAt, result.GCs = s.killed, s.killedAt, s.gcs
	results, _, err := rig.ReadResults(ctx, s.deployment.Redis.Client, events.DefaultNamespace, "")
	if err != nil {
		return err
	}
	commits := map[string]bool{}
	for _, r := range results {
		switch {
		case r.Type != events.ResultSynced:
			result.Failed++
		case r.After != s.first:
			commits[r.After] = true
		}
	}
	result.Syncs = len(commits)
	return nil
}
