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

// service is a running lockstep serve with a private Redis and volume.
type service struct {
	process  *rig.Process
	redis    *rig.Redis
	root     string
	idle     time.Duration
	lastSeen string // entry ID of the last result read
}

const (
	publishTimeout = 5 * time.Minute
	hookSource     = "/hooks/bench" // announces a commit as a verified webhook does
)

// startService starts a binary with its default settings.
func startService(ctx context.Context, env *rig.Env, binary, root string, idle time.Duration) (*service, error) {
	redis, err := env.OpenPrivateRedis(ctx)
	if err != nil {
		return nil, err
	}
	process, err := env.StartBinary(ctx, binary, "serve", "--redis", redis.URL, "--root", root, "--log-level", "error")
	return &service{process: process, redis: redis, root: root, idle: idle}, err
}

// Close stops the service.
func (s *service) Close() { _ = s.process.Stop() }

// publish announces a commit, waits until the repository's published name links to another tree, and then until the service is
// idle.
func (s *service) publish(ctx context.Context, repo events.RepoPath, url, commit string) (p Publication, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, publishTimeout, errors.New("no new tree; is the worker stuck?\n"+s.process.Log()))
	defer cancel()
	pid := s.process.Cmd.Process.Pid
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
	change := events.Change{Repo: repo, URL: url, After: commit, Source: hookSource}
	if _, err := rig.Publish(ctx, s.redis.Client, events.DefaultNamespace, change); err != nil {
		return p, err
	}
	if err := flip.await(func() error { return s.failure(ctx) }); err != nil {
		return p, err
	}
	p.Seen = time.Since(began)
	for answered := false; !answered; {
		if answered, err = s.answered(ctx); err != nil {
			return p, err
		}
		time.Sleep(time.Millisecond)
	}
	if s.idle > 0 {
		if err := rig.AwaitIdle(ctx, pid, s.idle); err != nil {
			return p, err
		}
	}
	now, err := rig.CPUTime(pid)
	p.CPU = now - spent
	return p, err
}

func (s *service) tree(repo events.RepoPath) string {
	return filepath.Join(s.root, filepath.FromSlash(repo.String()))
}

// failure returns an error if the change has failed, or ctx has ended.
func (s *service) failure(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	results, _, err := rig.ReadResults(ctx, s.redis.Client, events.DefaultNamespace, s.lastSeen)
	for _, r := range results {
		if r.Type == events.ResultFailed {
			err = fmt.Errorf("sync failed: %v", r.Error)
		}
	}
	return err
}

// answered reports whether there is a result that it has not read yet, and reads it.
func (s *service) answered(ctx context.Context) (answered bool, err error) {
	if err := s.failure(ctx); err != nil {
		return false, err
	}
	before := s.lastSeen
	_, s.lastSeen, err = rig.ReadResults(ctx, s.redis.Client, events.DefaultNamespace, s.lastSeen)
	return s.lastSeen != before, err
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
