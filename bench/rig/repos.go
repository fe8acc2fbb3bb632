package rig

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/term"
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
