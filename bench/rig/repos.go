package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/gitserver"
	"lockstep/internal/watch"
)

// CloneWithGit makes a clone of depth 1, without automatic housekeeping, which would run in the background.
func CloneWithGit(ctx context.Context, url, dir string, args ...string) error {
	_, err := gitserver.Git(ctx, "/", "", append([]string{"clone", "--quiet", "--depth", "1", "-c", "gc.auto=0", url, dir}, args...)...)
	return err
}

// CommitPushes makes a repository of some files with a commit for each push, and returns these commits in order.
func CommitPushes(ctx context.Context, git *gitserver.Server, repo string, files, pushes int) ([]string, error) {
	content := make(map[string]string, files)
	for i := range files {
		content[fmt.Sprintf("src/file-%d.txt", i)] = strings.Repeat(fmt.Sprintf("line of file %d\n", i), 40)
	}
	base, err := git.Create(ctx, repo, content)
	if err != nil {
		return nil, err
	}
	var script bytes.Buffer
	for i := range pushes {
		fmt.Fprintf(&script, "commit refs/heads/%s\ncommitter Bench <bench@example.com> %d +0000\ndata 4\npush\n", gitserver.Main, 1_700_000_000+i)
		if i == 0 {
			fmt.Fprintf(&script, "from %s\n", base)
		}
		line := fmt.Sprintf("push %d\n", i)
		fmt.Fprintf(&script, "M 100644 inline src/file-%d.txt\ndata %d\n%s\n", i%files, len(line), line)
	}
	script.WriteString("done\n")
	if _, err := git.Git(ctx, repo, script.String(), "fast-import", "--quiet", "--force", "--done"); err != nil {
		return nil, err
	}
	list, err := git.Git(ctx, repo, "", "rev-list", "--reverse", base+"..refs/heads/"+gitserver.Main)
	if err != nil {
		return nil, err
	}
	commits := strings.Fields(list)
	if len(commits) != pushes {
		return nil, fmt.Errorf("the sample repository has %d commits; want %d", len(commits), pushes)
	}
	return commits, nil
}

// Fleet is many small repositories on a Git server: one repository under many names.
type Fleet struct {
	Git *gitserver.Server
	n   int
}

// ServeFleet starts a server of n repositories. The caller must close Git.
func ServeFleet(ctx context.Context, dir string, n int) (*Fleet, error) {
	git, err := gitserver.Start(dir)
	if err != nil {
		return nil, err
	}
	f := &Fleet{git, n}
	if err := f.create(ctx); err != nil {
		git.Close()
		return nil, err
	}
	return f, nil
}

func (f *Fleet) create(ctx context.Context) error {
	files := map[string]string{}
	for i := range 20 {
		files[fmt.Sprintf("dir-%d/file-%d.txt", i%4, i)] = strings.Repeat("a line of text\n", 20)
	}
	if _, err := f.Git.Create(ctx, fleetRepo(0), files); err != nil {
		return err
	}
	for i := 1; i < f.n; i++ {
		if err := os.Symlink(filepath.Base(f.Git.Dir(fleetRepo(0))), f.Git.Dir(fleetRepo(i))); err != nil {
			return err
		}
	}
	return nil
}

func fleetRepo(i int) string { return fmt.Sprintf("bench/idle-%d", i) }

// Sync watches every repository, and waits until each has been polled and synced.
func (f *Fleet) Sync(ctx context.Context, client redis.UniversalClient, namespace events.Namespace) error {
	urls := make([]string, f.n)
	for i := range urls {
		urls[i] = f.Git.URL(fleetRepo(i))
	}
	if err := WatchAll(ctx, client, namespace, urls); err != nil {
		return err
	}
	return AwaitCount(ctx, 2*int64(f.n), 50*time.Millisecond, func() (int64, error) { // a result for the poll, one for the sync
		return client.XLen(ctx, namespace.Results()).Result()
	})
}

// SyncFleet serves a fleet of n repositories below env.Dir, and starts a worker that polls and syncs them. Then it spreads the
// next polls evenly over an hour, as for repositories that have been watched for long. It returns how long the first
// sync of all took. stop ends the worker and the server.
func SyncFleet(ctx context.Context, env *Env, server *Redis, n int) (d Deployment, worker *Process, took time.Duration, stop func(), err error) {
	fleet, err := ServeFleet(ctx, filepath.Join(env.Dir, "git"), n)
	if err != nil {
		return d, nil, 0, nil, err
	}
	d = Deployment{Env: env, Redis: server, Root: filepath.Join(env.Dir, "root")}
	worker, err = d.Start(ctx, "serve", "--roles", config.RoleWorker+","+config.RoleScheduler)
	if err != nil {
		fleet.Git.Close()
		return d, nil, 0, nil, err
	}
	stop = func() { _ = worker.Kill(); fleet.Git.Close() }
	began := time.Now()
	if err = fleet.Sync(ctx, server.Client, events.DefaultNamespace); err == nil {
		took = time.Since(began)
		err = fleet.spreadPolls(ctx, server.Client)
	}
	if err != nil {
		stop()
	}
	return d, worker, took, stop, err
}

func (f *Fleet) spreadPolls(ctx context.Context, client redis.UniversalClient) error {
	now, err := client.Time(ctx).Result()
	if err != nil {
		return err
	}
	_, err = client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range f.n {
			at := now.Add(time.Duration(i) * time.Hour / time.Duration(f.n))
			pipe.HSet(ctx, events.DefaultNamespace.Watches()+"of:"+fleetRepo(i), "asked", at.Add(-2*time.Hour).UnixMilli())
			pipe.ZAdd(ctx, events.DefaultNamespace.Poll(), redis.Z{Score: float64(at.UnixMilli()), Member: fleetRepo(i)})
		}
		return nil
	})
	return err
}

// WatchAll adds one watch for each repository.
func WatchAll(ctx context.Context, client redis.UniversalClient, namespace events.Namespace, urls []string) error {
	watches := make([]watch.Watch, len(urls))
	for i, url := range urls {
		watches[i] = watch.Watch{App: "bench", URL: url}
	}
	_, err := watch.NewRegistry(client, namespace).Put(ctx, watches...)
	return err
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
