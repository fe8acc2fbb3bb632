package rig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/gitserver"
)

// TempDir makes a folder in dir, or in TMPDIR if it is "", and removes it at the end of the run.
func (e *Env) TempDir(dir string) (string, error) {
	path, err := os.MkdirTemp(dir, "lockstep-bench-")
	if err != nil {
		return "", term.UsageError(fmt.Errorf("--dir: %w", err))
	}
	e.Cleanup(func() { _ = os.RemoveAll(path) })
	return path, nil
}

// StartGit starts a Git server, and stops it at the end of the run.
func (e *Env) StartGit() (*gitserver.Server, error) {
	git, err := gitserver.Start(filepath.Join(e.Dir, "remote"))
	if err == nil {
		e.Cleanup(git.Close)
	}
	return git, err
}

// Publish publishes a change, with the source /lockstep/bench unless it has one.
func Publish(ctx context.Context, client redis.UniversalClient, namespace events.Namespace, change events.Change) error {
	change.Source = cmp.Or(change.Source, "/lockstep/bench")
	change, err := events.NewChange(change)
	if err != nil {
		return err
	}
	return app.PublishChange(ctx, client, namespace, change)
}

// WithFileLock calls f while it holds an exclusive lock on a file, which it creates if needed.
func WithFileLock(path string, f func() error) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close() // unlocks it
	for {
		switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX); {
		case err == nil:
			return f()
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("lock %s: %w", path, err)
		}
	}
}
