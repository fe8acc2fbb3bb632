package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/gitserver"
)

// resetters are workers that all reset one clone in place, each time that they are told of a push.
type resetters struct {
	dir    string // the clone
	guard  *faultVolume
	wanted []chan struct{} // one for each worker; a push that is not yet looked at needs no second look

	mu      sync.Mutex
	commits map[string]bool
	failed  int
}

// startResets clones the repository. With a lock, one worker at a time resets the clone.
func startResets(ctx context.Context, r *availabilityRun, locked bool) (syncers, error) {
	s := &resetters{dir: filepath.Join(r.dir, "clone"), commits: map[string]bool{}, wanted: make([]chan struct{}, r.workers)}
	if locked {
		s.guard = &faultVolume{r.dir}
	}
	for i := range s.wanted {
		s.wanted[i] = make(chan struct{}, 1)
	}
	return s, cloneWithGit(ctx, r.git.URL(r.repo), s.dir)
}

func (s *resetters) published() string { return s.dir }
func (s *resetters) stop()             {}

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

// sync fetches and resets, and notes what came of it.
func (s *resetters) sync(ctx context.Context) {
	head := ""
	reset := func() (err error) {
		if _, err = gitserver.Git(ctx, s.dir, "", "fetch", "--quiet", "--depth", "1"); err != nil {
			return err
		}
		head, err = gitserver.Git(ctx, s.dir, "", "reset", "--hard", "FETCH_HEAD") // "HEAD is now at …"
		return err
	}
	var err error
	if s.guard != nil {
		err = s.guard.guarded(reset)
	} else {
		err = reset()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.commits[head] = true
	case ctx.Err() == nil: // else the run is over
		s.failed++
	}
}

func (s *resetters) report(_ context.Context, result *availabilityResult) error {
	result.Syncs, result.Failed = len(s.commits), s.failed
	return nil
}

const (
	killEvery = 2 * time.Second
	gcEvery   = 1500 * time.Millisecond
	benchers  = 2 // Lockstep's workers
)

// lockstepWorkers are processes of lockstep serve, of which one is killed now and then.
type lockstepWorkers struct {
	*availabilityRun
	std     streams
	server  *benchRedis
	program string
	first   string // commit, published before the run
	running []*lockstepWorker

	killed, gcs int
}

// lockstepWorker is one of them.
type lockstepWorker struct {
	cmd  *exec.Cmd
	said bytes.Buffer // not to be read before the process has ended
}

// startWorkers starts the workers, and returns once they have published the repository as it is.
func startWorkers(ctx context.Context, r *availabilityRun, std streams, server *benchRedis) (syncers, error) {
	s := &lockstepWorkers{availabilityRun: r, std: std, server: server, first: r.git.Head(r.repo, "refs/heads/"+gitserver.Main)}
	var err error
	if s.program, err = os.Executable(); err != nil {
		return nil, err
	}
	for range benchers {
		w, err := s.start(ctx, config.RoleWorker)
		if err != nil {
			s.stop()
			return nil, err
		}
		s.running = append(s.running, w)
	}
	if err := s.awaitFirst(ctx); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// command makes a command of this program on the deployment under test.
func (s *lockstepWorkers) command(ctx context.Context, args ...string) *lockstepWorker {
	args = append(args, "--redis", s.server.url, "--root", s.root(), "--lease", "1s", "--tree-grace", "5s", "--log-level", "error")
	w := &lockstepWorker{cmd: exec.CommandContext(ctx, s.program, args...)}
	w.cmd.Dir = s.dir // where no lockstep.yaml is
	w.cmd.Env = slices.DeleteFunc(slices.Clone(s.std.environ), func(pair string) bool { return strings.HasPrefix(pair, config.EnvPrefix) })
	w.cmd.Stdout, w.cmd.Stderr = &w.said, &w.said
	return w
}

func (s *lockstepWorkers) start(ctx context.Context, roles string) (*lockstepWorker, error) {
	w := s.command(ctx, "serve", "--roles", roles)
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	return w, nil
}

// kill returns an error if the worker had ended by itself.
func (w *lockstepWorker) kill() error {
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
	if w.cmd.ProcessState.Exited() {
		return fmt.Errorf("a worker has ended by itself: %s: it says: %s", w.cmd.ProcessState, strings.TrimSpace(w.said.String()))
	}
	return nil
}

func (s *lockstepWorkers) root() string { return filepath.Join(s.dir, "root") }
func (s *lockstepWorkers) published() string {
	return filepath.Join(s.root(), filepath.FromSlash(s.repo))
}

func (s *lockstepWorkers) stop() {
	for _, w := range s.running {
		_ = w.kill()
	}
	s.running = nil
}

func (s *lockstepWorkers) pushed(ctx context.Context, commit string) error {
	change, err := events.NewChange(events.Change{URL: s.git.URL(s.repo), Source: "/lockstep/bench", After: commit})
	if err != nil {
		return err
	}
	_, err = enqueue(ctx, s.server.client, events.DefaultNamespace, change) // the Redis is our own
	return err
}

// awaitFirst has the first commit published.
func (s *lockstepWorkers) awaitFirst(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, roundGrace, errors.New("the workers publish nothing"))
	defer cancel()
	if err := s.pushed(ctx, s.first); err != nil {
		return err
	}
	for {
		results, err := s.results(ctx)
		if err != nil || len(results) > 0 {
			return err
		}
		if !pause(ctx, 10*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// results reads what the workers have settled.
func (s *lockstepWorkers) results(ctx context.Context) ([]events.Result, error) {
	entries, err := s.server.client.XRange(ctx, events.DefaultNamespace.Results(), "-", "+").Result()
	if err != nil {
		return nil, err
	}
	results := make([]events.Result, len(entries))
	for i, entry := range entries {
		payload, _ := entry.Values["payload"].(string)
		if results[i], err = events.ParseResult([]byte(payload)); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// run kills the workers in turn, and compacts the store in between.
func (s *lockstepWorkers) run(ctx context.Context) error {
	g, during := errgroup.WithContext(ctx)
	g.Go(func() error { return s.killInTurn(during) })
	g.Go(func() error { return s.collect(during) })
	return g.Wait()
}

func (s *lockstepWorkers) killInTurn(during context.Context) error {
	for n := 0; pause(during, killEvery); n++ {
		i := n % len(s.running)
		if err := s.running[i].kill(); err != nil {
			return err
		}
		s.killed++
		next, err := s.start(context.WithoutCancel(during), config.RoleWorker) // it outlives the run, up to stop
		if err != nil {
			return err
		}
		s.running[i] = next
	}
	return nil
}

func (s *lockstepWorkers) collect(during context.Context) error {
	for pause(during, gcEvery) {
		gc := s.command(during, "repos", "gc", s.repo)
		err := gc.cmd.Run()
		if during.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("lockstep repos gc: %w: it says: %s", err, strings.TrimSpace(gc.said.String()))
		}
		s.gcs++
	}
	return nil
}

func (s *lockstepWorkers) report(ctx context.Context, result *availabilityResult) error {
	result.Killed, result.GCs = s.killed, s.gcs
	results, err := s.results(ctx)
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
