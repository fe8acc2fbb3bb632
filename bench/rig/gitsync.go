package rig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"lockstep/internal/gitserver"
)

// GitSync publishes as git-sync does: it checks each push out into a work tree of its own, replaces a symlink, and removes the work tree
// before at once, which is git-sync's default.
type GitSync struct {
	dir string
	n   int // of the published work tree
}

// OpenGitSync clones a repository into a new folder and publishes it. Its checkouts use so many processes.
func OpenGitSync(ctx context.Context, url, dir string, checkoutWorkers int) (*GitSync, error) {
	s := &GitSync{dir: dir}
	if err := CloneWithGit(ctx, url, s.clone(), checkoutWorkers, "--no-checkout"); err != nil {
		return nil, err
	}
	_, err := s.Publish(ctx)
	return s, err
}

// CloneWithGit makes a clone of depth 1 whose checkouts use so many processes, without automatic housekeeping, which would run in the
// background.
func CloneWithGit(ctx context.Context, url, dir string, checkoutWorkers int, args ...string) error {
	workers := fmt.Sprint("checkout.workers=", checkoutWorkers)
	_, err := gitserver.Git(ctx, "/", "", append([]string{"clone", "--quiet", "--depth", "1", "-c", "gc.auto=0", "-c", workers, url, dir}, args...)...)
	return err
}

func (s *GitSync) clone() string     { return filepath.Join(s.dir, "clone") }
func (s *GitSync) tree(n int) string { return filepath.Join(s.dir, fmt.Sprint("tree-", n)) }

// Published returns the path that readers open.
func (s *GitSync) Published() string { return filepath.Join(s.dir, "published") }

// Publish publishes the head of the remote, and returns the CPU time of git.
func (s *GitSync) Publish(ctx context.Context) (cpu time.Duration, err error) {
	next := s.tree(s.n + 1)
	for _, args := range [][]string{
		{"fetch", "--quiet", "--depth", "1"},
		{"worktree", "add", "--quiet", "--detach", "--no-checkout", next, "FETCH_HEAD"},
		{"-C", next, "reset", "--quiet", "--hard"},
	} {
		spent, err := gitserver.GitCPU(ctx, s.clone(), args...)
		if err != nil {
			return cpu, err
		}
		cpu += spent
	}
	link := s.Published() + ".next"
	if err := os.Symlink(filepath.Base(next), link); err != nil {
		return cpu, err
	}
	if err := os.Rename(link, s.Published()); err != nil {
		return cpu, err
	}
	s.n++
	return cpu, nil
}

// Tidy removes the work tree before the published one.
func (s *GitSync) Tidy(ctx context.Context) error {
	if s.n < 2 {
		return nil
	}
	_, err := gitserver.Git(ctx, s.clone(), "", "worktree", "remove", "--force", s.tree(s.n-1))
	return err
}
