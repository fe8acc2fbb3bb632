package publish

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/bench/rig"
	"lockstep/internal/gitserver"
)

// side is one way to publish pushes. It is not safe for concurrent use.
type side struct {
	name string
	tree string // path that readers open

	publish func(ctx context.Context, commit string) (Publication, error) // of a commit, which the default branch names
	tidy    func(ctx context.Context) error                               // cleans up after the clock has stopped; optional
}

// serviceSide publishes with lockstep serve.
func (r *run) serviceSide(name string, s service) side {
	return side{name: name, tree: s.tree(r.repo), publish: func(ctx context.Context, commit string) (Publication, error) {
		return s.publish(ctx, r.repo, r.git.URL(repoName), commit)
	}}
}

// resetSide is a clone that is reset in place. Its readers see it change file by file.
func (r *run) resetSide(ctx context.Context) (side, error) {
	dir := filepath.Join(r.dir, "reset")
	publish := func(ctx context.Context, _ string) (Publication, error) {
		return timedGit(ctx, dir, []string{"fetch", "--quiet", "--depth", "1"}, []string{"reset", "--quiet", "--hard", "FETCH_HEAD"})
	}
	return side{name: "git reset --hard", tree: dir, publish: publish}, rig.CloneWithGit(ctx, r.git.URL(repoName), dir, r.checkoutWorkers)
}

// gitSyncSide is a clone with a new work tree for each push, and a symlink to the newest.
func (r *run) gitSyncSide(ctx context.Context) (side, error) {
	s, err := rig.OpenGitSync(ctx, r.git.URL(repoName), filepath.Join(r.dir, "git-sync"), r.checkoutWorkers)
	if err != nil {
		return side{}, err
	}
	publish := func(ctx context.Context, _ string) (p Publication, err error) {
		began := time.Now()
		p.CPU, err = s.Publish(ctx)
		p.Seen = time.Since(began)
		return p, err
	}
	return side{name: "git-sync's steps", tree: s.Published(), publish: publish, tidy: s.Tidy}, nil
}

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
