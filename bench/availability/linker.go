package availability

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"lockstep/bench/rig"
	"lockstep/internal/gitserver"
)

// linker publishes as git-sync does: one worker checks each push out into a work tree of its own, replaces a symlink, and removes the work tree
// before at once, which is git-sync's default.
type linker struct {
	dir           string
	wanted        chan struct{} // with room for one announcement
	n             int           // of the published work tree
	syncs, failed int
}

func startLinker(ctx context.Context, t *turn) (syncer, error) {
	s := &linker{dir: t.dir, wanted: make(chan struct{}, 1)}
	if err := rig.CloneWithGit(ctx, t.git.URL(t.repo), s.clone(), "--no-checkout"); err != nil {
		return nil, err
	}
	return s, s.publish(ctx)
}

func (s *linker) clone() string     { return filepath.Join(s.dir, "clone") }
func (s *linker) published() string { return filepath.Join(s.dir, "published") }

func (s *linker) pushed(context.Context, string) error {
	select {
	case s.wanted <- struct{}{}:
	default:
	}
	return nil
}

func (s *linker) run(ctx context.Context) error {
	for {
		select {
		case <-s.wanted:
		case <-ctx.Done():
			return nil
		}
		err := s.publish(ctx)
		switch {
		case err == nil:
			s.syncs++
		case ctx.Err() == nil: // otherwise the run has ended
			s.failed++
		}
	}
}

// publish publishes the head of the remote.
func (s *linker) publish(ctx context.Context) error {
	name := func(n int) string { return filepath.Join(s.dir, fmt.Sprint("tree-", n)) }
	next := s.n + 1
	for _, args := range [][]string{
		{"fetch", "--quiet", "--depth", "1"},
		{"worktree", "add", "--quiet", "--detach", "--no-checkout", name(next), "FETCH_HEAD"},
		{"-C", name(next), "reset", "--quiet", "--hard"},
	} {
		if _, err := gitserver.Git(ctx, s.clone(), "", args...); err != nil {
			return err
		}
	}
	link := s.published() + ".next"
	if err := os.Symlink(filepath.Base(name(next)), link); err != nil {
		return err
	}
	if err := os.Rename(link, s.published()); err != nil {
		return err
	}
	s.n = next
	if next == 1 {
		return nil
	}
	_, err := gitserver.Git(ctx, s.clone(), "", "worktree", "remove", "--force", name(next-1))
	return err
}

func (s *linker) report(_ context.Context, result *Result) error {
	result.Syncs, result.Failed = s.syncs, s.failed
	return nil
}
