package availability

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/bench/lock"
	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/gitserver"
)

// resetters are workers that all reset one clone in place, each time that they are told of a push.
type resetters struct {
	dir    string // the clone
	guard  *lock.FaultVolume
	wanted []chan struct{} // one for each worker; a push that is not yet looked at needs no second look

	mu      sync.Mutex
	commits map[string]bool
	failed  int
}

// startResets clones the repository. With a lock, one worker at a time resets the clone.
func startResets(ctx context.Context, r *Deployment, locked bool) (syncers, error) {
	s := &resetters{dir: filepath.Join(r.Dir, "clone"), commits: map[string]bool{}, wanted: make([]chan struct{}, r.workers)}
	if locked {
		s.guard = &lock.FaultVolume{Dir: r.Dir}
	}
	for i := range s.wanted {
		s.wanted[i] = make(chan struct{}, 1)
	}
	return s, rig.CloneWithGit(ctx, r.git.URL(r.repo), s.dir)
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

func (s *resetters) Run(ctx context.Context) error {
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
		err = s.guard.Guarded(reset)
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

func (s *resetters) report(_ context.Context, result *AvailabilityResult) error {
	result.Syncs, result.Failed = len(s.commits), s.failed
	return nil
}

const (
	killEvery = 2 * time.Second
	gcEvery   = 1500 * time.Millisecond
	benchers  = 2 // Lockstep's workers
)

// Workers are processes of lockstep serve, of which one is killed now and then.
type Workers struct {
	*Deployment
	Std     term.Streams
	Server  *rig.Redis
	Program string
	first   string // commit, published before the run
	running []*LockstepWorker

	killed, gcs int
}

// LockstepWorker is one of them.
type LockstepWorker struct {
	Cmd  *exec.Cmd
	Said bytes.Buffer // not to be read before the process has ended
}

// startWorkers starts the workers, and returns once they have published the repository as it is.
func startWorkers(ctx context.Context, r *Deployment, std term.Streams, server *rig.Redis) (syncers, error) {
	s := &Workers{Deployment: r, Std: std, Server: server, first: r.git.Head(r.repo, "refs/heads/"+gitserver.Main)}
	var err error
	if s.Program, err = rig.Program(ctx, std, r.Dir); err != nil {
		return nil, err
	}
	for range benchers {
		w, err := s.Start(ctx, config.RoleWorker)
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

// Command makes a command of this program on the deployment under test.
func (s *Workers) Command(ctx context.Context, args ...string) *LockstepWorker {
	args = append(args, "--redis", s.Server.Url, "--root", s.root(), "--lease", "1s", "--tree-grace", "5s", "--log-level", "error")
	w := &LockstepWorker{Cmd: exec.CommandContext(ctx, s.Program, args...)}
	w.Cmd.Dir = s.Dir // where no lockstep.yaml is
	w.Cmd.Env = slices.DeleteFunc(slices.Clone(s.Std.Environ), func(pair string) bool { return strings.HasPrefix(pair, config.EnvPrefix) })
	w.Cmd.Stdout, w.Cmd.Stderr = &w.Said, &w.Said
	return w
}

func (s *Workers) Start(ctx context.Context, roles string) (*LockstepWorker, error) {
	w := s.Command(ctx, "serve", "--roles", roles)
	if err := w.Cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	return w, nil
}

// Kill returns an error if the worker had ended by itself.
func (w *LockstepWorker) Kill() error {
	_ = w.Cmd.Process.Kill()
	_ = w.Cmd.Wait()
	if w.Cmd.ProcessState.Exited() {
		return fmt.Errorf("a worker has ended by itself: %s: it says: %s", w.Cmd.ProcessState, strings.TrimSpace(w.Said.String()))
	}
	return nil
}

func (s *Workers) root() string { return filepath.Join(s.Dir, "root") }
func (s *Workers) published() string {
	return filepath.Join(s.root(), filepath.FromSlash(s.repo))
}

func (s *Workers) stop() {
	for _, w := range s.running {
		_ = w.Kill()
	}
	s.running = nil
}

func (s *Workers) pushed(ctx context.Context, commit string) error {
	change, err := events.NewChange(events.Change{URL: s.git.URL(s.repo), Source: "/lockstep/bench", After: commit})
	if err != nil {
		return err
	}
	_, err = app.Enqueue(ctx, s.Server.Client, events.DefaultNamespace, change) // the Redis is our own
	return err
}

// awaitFirst has the first commit published.
func (s *Workers) awaitFirst(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, rig.RoundGrace, errors.New("the workers publish nothing"))
	defer cancel()
	if err := s.pushed(ctx, s.first); err != nil {
		return err
	}
	for {
		results, err := s.results(ctx)
		if err != nil || len(results) > 0 {
			return err
		}
		if !app.Sleep(ctx, 10*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// results reads what the workers have settled.
func (s *Workers) results(ctx context.Context) ([]events.Result, error) {
	entries, err := s.Server.Client.XRange(ctx, events.DefaultNamespace.Results(), "-", "+").Result()
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

// Run kills the workers in turn, and compacts the store in between.
func (s *Workers) Run(ctx context.Context) error {
	g, during := errgroup.WithContext(ctx)
	g.Go(func() error { return s.killInTurn(during) })
	g.Go(func() error { return s.collect(during) })
	return g.Wait()
}

func (s *Workers) killInTurn(during context.Context) error {
	for n := 0; app.Sleep(during, killEvery); n++ {
		i := n % len(s.running)
		if err := s.running[i].Kill(); err != nil {
			return err
		}
		s.killed++
		next, err := s.Start(context.WithoutCancel(during), config.RoleWorker) // it outlives the run, up to stop
		if err != nil {
			return err
		}
		s.running[i] = next
	}
	return nil
}

func (s *Workers) collect(during context.Context) error {
	for app.Sleep(during, gcEvery) {
		gc := s.Command(during, "repos", "gc", s.repo)
		err := gc.Cmd.Run()
		if during.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("lockstep repos gc: %w: it says: %s", err, strings.TrimSpace(gc.Said.String()))
		}
		s.gcs++
	}
	return nil
}

func (s *Workers) report(ctx context.Context, result *AvailabilityResult) error {
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
