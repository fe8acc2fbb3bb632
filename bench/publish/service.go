package publish

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

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
	hookSource     = "/hooks/bench"         // announces a commit as a verified webhook does
	idle           = 300 * time.Millisecond // for which a process must be idle before the next turn
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
	_ = s.Stop()
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
	flip, err := watchLink(s.tree(repo))
	if err != nil {
		return p, err
	}
	defer flip.Close()
	began := time.Now()
	wait, err := s.Publish(ctx, events.Change{Repo: repo, URL: url, After: commit, Source: hookSource})
	if err != nil {
		return p, err
	}
	err = flip.await(func() error {
		if wait.Answered() || ctx.Err() != nil {
			_, err := wait.Await(ctx)
			return err
		}
		return nil
	})
	if err != nil {
		return p, err
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

// link waits for a symlink to be replaced.
type link struct {
	path, target string
	inotify      int
}

// watchLink watches the folder of a symlink, which need not exist yet.
func watchLink(path string) (*link, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(path), unix.IN_MOVED_TO|unix.IN_CREATE); err != nil {
		return nil, errors.Join(fmt.Errorf("inotify: %w", err), unix.Close(fd))
	}
	target, _ := os.Readlink(path)
	return &link{path, target, fd}, nil
}

// await waits for the new target. It calls check every second.
func (l *link) await(check func() error) error {
	events := make([]byte, 4096)
	for {
		if target, err := os.Readlink(l.path); err == nil && target != l.target {
			return nil
		}
		poll := []unix.PollFd{{Fd: int32(l.inotify), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 1000)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for %s to change: %w", l.path, err)
		case n == 0:
			if err := check(); err != nil {
				return err
			}
		default:
			_, _ = unix.Read(l.inotify, events) // the link says what happened
		}
	}
}

// Close ends the watch.
func (l *link) Close() { _ = unix.Close(l.inotify) }
