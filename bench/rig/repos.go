package rig

import (
	"cmp"
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
	"lockstep/internal/app"
	"lockstep/internal/config"
	"lockstep/internal/gitserver"
	"lockstep/internal/watch"
)

// CloneWithGit makes a clone of depth 1, without automatic housekeeping, which would run in the background.
func CloneWithGit(ctx context.Context, url, dir string, args ...string) error {
	_, err := gitserver.Git(ctx, "/", "", append([]string{"clone", "--quiet", "--depth", "1", "-c", "gc.auto=0", url, dir}, args...)...)
	return err
}

// StartGit starts a Git server, and stops it at the end of the run.
func (e *Env) StartGit() (*gitserver.Server, error) {
	git, err := gitserver.Start(filepath.Join(e.Dir, "remote"))
	if err == nil {
		e.Cleanup(git.Close)
	}
	return git, err
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
	var script strings.Builder
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
	git *gitserver.Server
	n   int
}

// ServeFleet serves n repositories until the end of the run.
func (e *Env) ServeFleet(ctx context.Context, n int) (*Fleet, error) {
	git, err := e.StartGit()
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for i := range 20 {
		files[fmt.Sprintf("dir-%d/file-%d.txt", i%4, i)] = strings.Repeat("a line of text\n", 20)
	}
	if _, err := git.Create(ctx, fleetRepo(0), files); err != nil {
		return nil, err
	}
	for i := 1; i < n; i++ {
		if err := git.Alias(fleetRepo(i), fleetRepo(0)); err != nil {
			return nil, err
		}
	}
	return &Fleet{git, n}, nil
}

func fleetRepo(i int) string { return fmt.Sprintf("bench/idle-%d", i) }

// Sync watches every repository, and waits until each has been polled and synced.
func (f *Fleet) Sync(ctx context.Context, client redis.UniversalClient, namespace events.Namespace) error {
	urls := make([]string, f.n)
	for i := range urls {
		urls[i] = f.git.URL(fleetRepo(i))
	}
	if err := WatchAll(ctx, client, namespace, urls); err != nil {
		return err
	}
	return AwaitResults(ctx, client, namespace, 2*int64(f.n), 50*time.Millisecond) // one for the poll, one for the sync
}

// SyncFleet serves a fleet of n repositories, and starts a worker that polls and syncs them. Then it spreads the next polls
// evenly over an hour, as for repositories that have been watched for long. It returns how long the first sync of all took.
func (d Deployment) SyncFleet(ctx context.Context, n int) (worker *Process, took time.Duration, err error) {
	fleet, err := d.ServeFleet(ctx, n)
	if err != nil {
		return nil, 0, err
	}
	if worker, err = d.Start(ctx, "serve", "--roles", config.RoleWorker+","+config.RoleScheduler); err != nil {
		return nil, 0, err
	}
	began := time.Now()
	if err := fleet.Sync(ctx, d.Redis.Client, events.DefaultNamespace); err != nil {
		return worker, 0, err
	}
	took = time.Since(began)
	return worker, took, fleet.spreadPolls(ctx, d.Redis.Client)
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

// Publish publishes a change, with the source /lockstep/bench unless it has one.
func Publish(ctx context.Context, client redis.UniversalClient, namespace events.Namespace, change events.Change) (events.Change, error) {
	change.Source = cmp.Or(change.Source, "/lockstep/bench")
	change, err := events.NewChange(change)
	if err != nil {
		return change, err
	}
	return change, app.PublishChange(ctx, client, namespace, change)
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
