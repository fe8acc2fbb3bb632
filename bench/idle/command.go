package idle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/bench/availability"
	"lockstep/bench/hooks"
	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/gitserver"
)

// Bench is what the flags of bench idle say.
type Bench struct {
	redis    string
	Repos    int
	duration time.Duration
	out      term.Output
}

func NewCommand(std term.Streams) *cobra.Command {
	var b Bench
	cmd := &cobra.Command{
		Use:   "idle",
		Short: "Measure what a worker takes that keeps many repositories and has nothing to do but to poll them",
		Long: "Have many small repositories watched and one worker sync them, then leave it alone and look at its memory and at\n" +
			"the processor time that it takes. Each is polled once an hour, spread evenly. Without --redis it starts a private\n" +
			"redis-server.",
		Example: "  go run ./bench idle\n  bench idle --repos 10000 --duration 60s --json",
		Args:    term.WrongUse(term.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if b.Repos < 1 || b.duration < time.Second {
				return term.UsageError(errors.New("want at least one repository, and 1s"))
			}
			app.SilenceRedis()
			result, err := b.Run(cmd.Context(), std)
			if err != nil {
				return err
			}
			if !b.out.IsTable() {
				return b.out.Document(std.Stdout, result)
			}
			_, err = fmt.Fprintf(std.Stdout, "%d watched repositories, synced in %v\nidle for %v: %.2f %% of a core with %d polls, %d MB of memory (at most %d MB so far)\n",
				result.Repos, result.SyncedIn.Round(time.Millisecond), b.duration, 100*result.Core, result.Polls, result.RSS>>20, result.Peak>>20)
			return err
		},
	}
	cmd.Flags().StringVar(&b.redis, "redis", "", "Redis `URL` to measure on (default: a private redis-server)")
	cmd.Flags().IntVar(&b.Repos, "repos", 1000, "repositories")
	cmd.Flags().DurationVar(&b.duration, "duration", 30*time.Second, "how long to leave the worker alone")
	b.out.Add(cmd)
	return cmd
}

// IdleResult is what a worker takes that has nothing to do.
type IdleResult struct {
	Repos    int           `json:"repos"`
	SyncedIn time.Duration `json:"synced_in_ns"`
	Core     float64       `json:"core"`  // share of one
	Polls    int64         `json:"polls"` // meanwhile
	RSS      int64         `json:"rss"`   // bytes
	Peak     int64         `json:"peak"`  // bytes, up to then
}

func (b *Bench) Run(ctx context.Context, std term.Streams) (IdleResult, error) {
	result := IdleResult{Repos: b.Repos}
	server, err := rig.OpenRedis(ctx, b.redis)
	if err != nil {
		return result, err
	}
	defer server.Close()
	dir, err := os.MkdirTemp("", "lockstep-bench-")
	if err != nil {
		return result, err
	}
	defer os.RemoveAll(dir)
	git, err := b.ServeRepos(ctx, filepath.Join(dir, "git"))
	if err != nil {
		return result, err
	}
	defer git.Close()

	w := &availability.Workers{Deployment: &availability.Deployment{Dir: dir}, Std: std, Server: server}
	if w.Program, err = rig.Program(ctx, std, dir); err != nil {
		return result, err
	}
	worker, err := w.Start(ctx, config.RoleWorker+","+config.RoleScheduler)
	if err != nil {
		return result, err
	}
	defer func() { _ = worker.Kill() }()
	began := time.Now()
	if err := b.SyncAll(ctx, server, git); err != nil {
		return result, err
	}
	result.SyncedIn = time.Since(began)
	if err := b.SpreadPolls(ctx, server); err != nil {
		return result, err
	}
	before, err := server.Client.XLen(ctx, events.DefaultNamespace.Results()).Result()
	if err != nil {
		return result, err
	}
	if err := b.look(ctx, worker.Cmd, &result); err != nil {
		return result, err
	}
	after, err := server.Client.XLen(ctx, events.DefaultNamespace.Results()).Result()
	result.Polls = after - before
	return result, err
}

// SpreadPolls has the repositories polled one after the other in the course of an hour, as they are once they
// have been watched for long.
func (b *Bench) SpreadPolls(ctx context.Context, server *rig.Redis) error {
	now, err := server.Client.Time(ctx).Result()
	if err != nil {
		return err
	}
	_, err = server.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range b.Repos {
			at := now.Add(time.Duration(i) * time.Hour / time.Duration(b.Repos))
			pipe.HSet(ctx, events.DefaultNamespace.Watches()+"of:"+idleRepo(i), "asked", at.Add(-2*time.Hour).UnixMilli())
			pipe.ZAdd(ctx, events.DefaultNamespace.Poll(), redis.Z{Score: float64(at.UnixMilli()), Member: idleRepo(i)})
		}
		return nil
	})
	return err
}

// ServeRepos serves one small repository under many names.
func (b *Bench) ServeRepos(ctx context.Context, dir string) (*gitserver.Server, error) {
	git, err := gitserver.Start(dir)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for i := range 20 {
		files[fmt.Sprintf("dir-%d/file-%d.txt", i%4, i)] = strings.Repeat("a line of text\n", 20)
	}
	if _, err := git.Create(ctx, idleRepo(0), files); err != nil {
		git.Close()
		return nil, err
	}
	for i := 1; i < b.Repos; i++ {
		if err := os.Symlink(filepath.Base(git.Dir(idleRepo(0))), git.Dir(idleRepo(i))); err != nil {
			git.Close()
			return nil, err
		}
	}
	return git, nil
}

func idleRepo(i int) string { return fmt.Sprintf("bench/idle-%d", i) }

// SyncAll has every repository watched, and so polled and synced.
func (b *Bench) SyncAll(ctx context.Context, server *rig.Redis, git *gitserver.Server) error {
	return b.SyncIn(ctx, server, events.DefaultNamespace, git)
}

// SyncIn is syncAll in a namespace.
func (b *Bench) SyncIn(ctx context.Context, server *rig.Redis, namespace events.Namespace, git *gitserver.Server) error {
	urls := make([]string, b.Repos)
	for i := range urls {
		urls[i] = git.URL(idleRepo(i))
	}
	if err := hooks.WatchAll(ctx, server.Client, namespace, urls); err != nil {
		return err
	}
	for {
		synced, err := server.Client.XLen(ctx, namespace.Results()).Result()
		if err != nil || synced >= 2*int64(b.Repos) { // each was polled, and synced
			return err
		}
		if !app.Sleep(ctx, 50*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// look leaves the worker alone, and looks at what it takes.
func (b *Bench) look(ctx context.Context, worker *exec.Cmd, result *IdleResult) error {
	before, err := rig.ProcessorTime(worker.Process.Pid)
	if err != nil {
		return err
	}
	if !app.Sleep(ctx, b.duration) {
		return context.Cause(ctx)
	}
	after, err := rig.ProcessorTime(worker.Process.Pid)
	if err != nil {
		return err
	}
	result.Core = (after - before).Seconds() / b.duration.Seconds()
	if result.RSS, err = rig.ProcessMemory(worker.Process.Pid, "VmRSS"); err != nil {
		return err
	}
	result.Peak, err = rig.ProcessMemory(worker.Process.Pid, "VmHWM")
	return err
}
