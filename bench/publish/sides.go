package publish

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/gitserver"
)

// side is one way to publish pushes. It is not safe for concurrent use.
type side interface {
	// publish publishes a commit, which the default branch names.
	publish(ctx context.Context, commit string) (Publication, error)

	// tree returns the path that readers open.
	tree() string

	// tidy cleans up after the clock has stopped.
	tidy(ctx context.Context) error
}

// serviceSide publishes with a running lockstep serve.
type serviceSide struct {
	*service
	repo events.RepoPath
	url  string
}

func (s *serviceSide) publish(ctx context.Context, commit string) (Publication, error) {
	return s.service.publish(ctx, s.repo, s.url, commit)
}

func (s *serviceSide) tree() string             { return s.service.tree(s.repo) }
func (*serviceSide) tidy(context.Context) error { return nil }

// timedGit runs git commands in a folder one after the other.
func timedGit(ctx context.Context, dir string, commands ...[]string) (p Publication, err error) {
	began := time.Now()
	for _, args := range commands {
		cpu, err := gitserver.GitCPU(ctx, dir, args...)
		if err != nil {
			return p, err
		}
		p.CPU += cpu
	}
	p.Seen = time.Since(began)
	return p, nil
}

// clone makes a clone of depth 1 whose checkouts use so many processes.
func clone(ctx context.Context, url, dir string, workers int, args ...string) error {
	return rig.CloneWithGit(ctx, url, dir, append([]string{"-c", fmt.Sprint("checkout.workers=", workers)}, args...)...)
}

// resetSide is a clone that is reset in place. Its readers see it change file by file.
type resetSide struct{ dir string }

func openResetSide(ctx context.Context, dir, url string, workers int) (*resetSide, error) {
	return &resetSide{dir}, clone(ctx, url, dir, workers)
}

func (s *resetSide) publish(ctx context.Context, _ string) (Publication, error) {
	return timedGit(ctx, s.dir, []string{"fetch", "--quiet", "--depth", "1"}, []string{"reset", "--quiet", "--hard", "FETCH_HEAD"})
}

func (s *resetSide) tree() string             { return s.dir }
func (*resetSide) tidy(context.Context) error { return nil }

// worktreeSide is a clone with a new work tree for each push, and a symlink to the newest.
type worktreeSide struct {
	dir     string
	gitSync bool // add the work tree empty and reset it, as git-sync does
	n       int
}

func openWorktreeSide(ctx context.Context, dir, url string, workers int, gitSync bool) (*worktreeSide, error) {
	s := &worktreeSide{dir: dir, gitSync: gitSync}
	if err := clone(ctx, url, s.clone(), workers, "--no-checkout"); err != nil {
		return nil, err
	}
	_, err := s.publish(ctx, "")
	return s, err
}

func (s *worktreeSide) clone() string         { return filepath.Join(s.dir, "clone") }
func (s *worktreeSide) tree() string          { return filepath.Join(s.dir, "published") }
func (s *worktreeSide) worktree(n int) string { return filepath.Join(s.dir, fmt.Sprint("tree-", n)) }

func (s *worktreeSide) publish(ctx context.Context, _ string) (p Publication, err error) {
	s.n++
	tree := s.worktree(s.n)
	fetch, add := []string{"fetch", "--quiet", "--depth", "1"}, []string{"worktree", "add", "--quiet", "--detach"}
	if s.gitSync {
		p, err = timedGit(ctx, s.clone(), fetch, append(add, "--no-checkout", tree, "FETCH_HEAD"), []string{"-C", tree, "reset", "--quiet", "--hard"})
	} else {
		p, err = timedGit(ctx, s.clone(), fetch, append(add, tree, "FETCH_HEAD"))
	}
	if err != nil {
		return p, err
	}
	began, next := time.Now(), s.tree()+".next"
	if err := os.Symlink(filepath.Base(tree), next); err != nil {
		return p, err
	}
	err = os.Rename(next, s.tree())
	p.Seen += time.Since(began)
	return p, err
}

func (s *worktreeSide) tidy(ctx context.Context) error {
	if s.n < 2 {
		return nil
	}
	_, err := gitserver.Git(ctx, s.clone(), "", "worktree", "remove", "--force", s.worktree(s.n-1))
	return err
}
