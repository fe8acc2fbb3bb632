package publish

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/gitserver"
	"lockstep/internal/volume"
)

// The names of the contestants.
const (
	SideLinked   = "lockstep"
	SideReused   = "lockstep --tree-reuse"
	SideReset    = "git reset --hard"
	SideWorktree = "git worktree add"
	SideClone    = "git clone --depth 1"
)

// side is one way to publish pushes. It is not safe for concurrent use.
type side interface {
	// publish publishes the last push.
	publish(ctx context.Context) (Publication, error)

	// tree returns the path that readers open.
	tree() string

	// tidy cleans up after the clock has stopped.
	tidy(ctx context.Context) error
	Close()
}

// noCleanup is embedded in sides that have nothing to clean up.
type noCleanup struct{}

func (noCleanup) tidy(context.Context) error { return nil }
func (noCleanup) Close()                     {}

// engineSide is Lockstep. Its next sync tidies up.
type engineSide struct {
	noCleanup
	volume *volume.Volume
	req    volume.SyncRequest
	began  time.Time
	marks  []mark
}

// openEngineSide opens a volume with a grace of almost zero, so that a replaced tree can be recycled at once.
func openEngineSide(root string, repo events.RepoPath, url string, reuse bool) (*engineSide, error) {
	s := &engineSide{req: volume.SyncRequest{Repo: repo, URL: url}}
	var err error
	s.volume, err = volume.OpenVolume(root, volume.Config{Grace: 1, ReuseTrees: reuse, Step: s.mark})
	return s, err
}

func (s *engineSide) mark(step string) {
	s.marks = append(s.marks, mark{Step: step, At: time.Since(s.began)})
}

func (s *engineSide) publish(ctx context.Context) (Publication, error) {
	s.req.Fence++
	s.marks, s.began = nil, time.Now()
	result, err := s.volume.Sync(ctx, s.req)
	if err != nil {
		return Publication{}, err
	}
	if !result.Published {
		return Publication{}, errors.New("the sync did not see the push")
	}
	s.mark(returned)
	s.volume.AwaitDeletions() // otherwise they would slow down the next contestant
	p := Publication{Phases: splitPhases(s.marks)}
	for _, m := range s.marks {
		if m.Step == "flipped" {
			p.Seen = m.At
		}
	}
	p.Reused, err = hasOlderFolder(s.tree(), s.began)
	return p, err
}

// hasOlderFolder reports whether a tree has a folder that was last changed before the moment. A tree just built has none; a
// recycled tree has, unless the push changed all folders.
func hasOlderFolder(tree string, moment time.Time) (found bool, err error) {
	const coarse = 20 * time.Millisecond // the clock of a file system lags by up to a tick
	tree, err = filepath.EvalSymlinks(tree)
	if err != nil {
		return false, err
	}
	err = filepath.WalkDir(tree, func(_ string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !entry.IsDir():
			return nil
		case entry.Name() == ".git":
			return fs.SkipDir
		}
		info, err := entry.Info()
		if err == nil && info.ModTime().Before(moment.Add(-coarse)) {
			found, err = true, fs.SkipAll
		}
		return err
	})
	return found, err
}

func (s *engineSide) tree() string {
	return filepath.Join(s.volume.Root(), filepath.FromSlash(s.req.Repo.String()))
}

func (s *engineSide) Close() { s.volume.Close() }

// resetSide is a clone that is reset in place. Its readers see it change file by file.
type resetSide struct {
	noCleanup
	dir string
}

func openResetSide(ctx context.Context, dir, url string) (*resetSide, error) {
	return &resetSide{dir: dir}, rig.CloneWithGit(ctx, url, dir)
}

func (s *resetSide) publish(ctx context.Context) (p Publication, err error) {
	began := time.Now()
	if _, err := gitserver.Git(ctx, s.dir, "", "fetch", "--quiet", "--depth", "1"); err != nil {
		return p, err
	}
	if _, err := gitserver.Git(ctx, s.dir, "", "reset", "--quiet", "--hard", "FETCH_HEAD"); err != nil {
		return p, err
	}
	p.Seen = time.Since(began)
	err = syncFileSystem(s.dir)
	p.Synced = time.Since(began)
	return p, err
}

func (s *resetSide) tree() string { return s.dir }

// worktreeSide is a clone with a new work tree for each push, and a symlink to the newest.
type worktreeSide struct {
	noCleanup
	dir string
	n   int
}

func openWorktreeSide(ctx context.Context, dir, url string) (*worktreeSide, error) {
	s := &worktreeSide{dir: dir}
	if err := rig.CloneWithGit(ctx, url, s.clone(), "--no-checkout"); err != nil {
		return nil, err
	}
	if _, err := s.publish(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *worktreeSide) clone() string         { return filepath.Join(s.dir, "clone") }
func (s *worktreeSide) tree() string          { return filepath.Join(s.dir, "published") }
func (s *worktreeSide) worktree(n int) string { return filepath.Join(s.dir, fmt.Sprint("tree-", n)) }

func (s *worktreeSide) publish(ctx context.Context) (p Publication, err error) {
	s.n++
	began := time.Now()
	if _, err := gitserver.Git(ctx, s.clone(), "", "fetch", "--quiet"); err != nil {
		return p, err
	}
	if _, err := gitserver.Git(ctx, s.clone(), "", "worktree", "add", "--quiet", "--detach", s.worktree(s.n), "FETCH_HEAD"); err != nil {
		return p, err
	}
	next := s.tree() + ".next"
	if err := os.Symlink(filepath.Base(s.worktree(s.n)), next); err != nil {
		return p, err
	}
	err = os.Rename(next, s.tree())
	p.Seen = time.Since(began)
	return p, err
}

func (s *worktreeSide) tidy(ctx context.Context) error {
	if s.n < 2 {
		return nil
	}
	_, err := gitserver.Git(ctx, s.clone(), "", "worktree", "remove", "--force", s.worktree(s.n-1))
	return err
}

// syncFileSystem waits until everything written to path's file system is on disk.
func syncFileSystem(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("sync the file system of %s: %w", path, err)
	}
	return nil
}
