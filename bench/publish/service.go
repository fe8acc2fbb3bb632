package publish

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"lockstep/bench/rig"
	"lockstep/events"
)

// service is a lockstep serve with a private Redis and volume.
type service struct {
	*rig.Service
	*rig.Follower
}

const (
	publishTimeout = 5 * time.Minute
	idle           = 300 * time.Millisecond // for which a process must be idle before the next turn
	pollLink       = 100 * time.Microsecond // a hundredth of the fastest push
)

// startService starts a binary with its default settings.
func startService(ctx context.Context, env *rig.Env, side rig.Side, root string) (s service, err error) {
	server, err := env.OpenRedis(ctx)
	if err != nil {
		return s, err
	}
	if s.Follower, err = env.Follow(ctx, server); err != nil {
		return s, err
	}
	s.Service, err = env.Serve(ctx, side, server, root)
	return s, err
}

// stop stops the service.
func (s service) stop() {
	s.Follower.Close()
	_ = s.Kill()
}

// publish announces a commit, waits until the repository's published name links to another tree, and then until the service is
// idle.
func (s service) publish(ctx context.Context, repo events.RepoPath, url, commit string) (p Publication, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, publishTimeout, errors.New("no new tree; is the worker stuck?\n"+s.Log()))
	defer cancel()
	pid := s.Cmd.Process.Pid
	spent, err := rig.CPUTime(pid)
	if err != nil {
		return p, err
	}
	before, _ := os.Readlink(s.tree(repo)) // "" before the first clone
	began := time.Now()
	wait, err := s.Publish(ctx, events.Change{Repo: repo, URL: url, After: commit})
	if err != nil {
		return p, err
	}
	for tree := before; tree == before && !wait.Answered() && ctx.Err() == nil; tree, _ = os.Readlink(s.tree(repo)) {
		time.Sleep(pollLink)
	}
	p.Seen = time.Since(began)
	if _, err := wait.Await(ctx); err != nil {
		return p, err
	}
	if err := rig.AwaitIdle(ctx, pid, idle); err != nil {
		return p, err
	}
	now, err := rig.CPUTime(pid)
	p.CPU = now - spent
	return p, err
}

func (s service) tree(repo events.RepoPath) string {
	return filepath.Join(s.Root, filepath.FromSlash(repo.String()))
}
