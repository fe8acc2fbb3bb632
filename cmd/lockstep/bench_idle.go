package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/config"
	"lockstep/internal/gitserver"
)

// idleBench is what the flags of lockstep bench idle say.
type idleBench struct {
	redis    string
	repos    int
	duration time.Duration
	out      output
}

func newBenchIdleCommand(std streams) *cobra.Command {
	var b idleBench
	cmd := &cobra.Command{
		Use:   "idle",
		Short: "Measure what a worker takes that keeps many repositories and has nothing to do but to poll them",
		Long: "Have many small repositories watched and one worker sync them, then leave it alone and look at its memory and at\n" +
			"the processor time that it takes. Each is polled once an hour, spread evenly. Without --redis it starts a private\n" +
			"redis-server.",
		Example: "  lockstep bench idle\n  lockstep bench idle --repos 10000 --duration 60s --json",
		Args:    wrongUse(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if b.repos < 1 || b.duration < time.Second {
				return usageError(errors.New("want at least one repository, and 1s"))
			}
			silenceRedis()
			result, err := b.run(cmd.Context(), std)
			if err != nil {
				return err
			}
			if !b.out.isTable() {
				return b.out.document(std.stdout, result)
			}
			_, err = fmt.Fprintf(std.stdout, "%d watched repositories, synced in %v\nidle for %v: %.2f %% of a core with %d polls, %d MB of memory (at most %d MB so far)\n",
				result.Repos, result.SyncedIn.Round(time.Millisecond), b.duration, 100*result.Core, result.Polls, result.RSS>>20, result.Peak>>20)
			return err
		},
	}
	cmd.Flags().StringVar(&b.redis, "redis", "", "Redis `URL` to measure on (default: a private redis-server)")
	cmd.Flags().IntVar(&b.repos, "repos", 1000, "repositories")
	cmd.Flags().DurationVar(&b.duration, "duration", 30*time.Second, "how long to leave the worker alone")
	b.out.add(cmd)
	return cmd
}

// idleResult is what a worker takes that has nothing to do.
type idleResult struct {
	Repos    int           `json:"repos"`
	SyncedIn time.Duration `json:"synced_in_ns"`
	Core     float64       `json:"core"`  // share of one
	Polls    int64         `json:"polls"` // meanwhile
	RSS      int64         `json:"rss"`   // bytes
	Peak     int64         `json:"peak"`  // bytes, up to then
}

func (b *idleBench) run(ctx context.Context, std streams) (idleResult, error) {
	result := idleResult{Repos: b.repos}
	server, err := openBenchRedis(ctx, b.redis)
	if err != nil {
		return result, err
	}
	defer server.Close()
	dir, err := os.MkdirTemp("", "lockstep-bench-")
	if err != nil {
		return result, err
	}
	defer os.RemoveAll(dir)
	git, err := b.serveRepos(ctx, filepath.Join(dir, "git"))
	if err != nil {
		return result, err
	}
	defer git.Close()

	w := &lockstepWorkers{availabilityRun: &availabilityRun{dir: dir}, std: std, server: server}
	if w.program, err = os.Executable(); err != nil {
		return result, err
	}
	worker, err := w.start(ctx, config.RoleWorker+","+config.RoleScheduler)
	if err != nil {
		return result, err
	}
	defer func() { _ = worker.kill() }()
	began := time.Now()
	if err := b.syncAll(ctx, server, git); err != nil {
		return result, err
	}
	result.SyncedIn = time.Since(began)
	if err := b.spreadPolls(ctx, server); err != nil {
		return result, err
	}
	before, err := server.client.XLen(ctx, events.DefaultNamespace.Results()).Result()
	if err != nil {
		return result, err
	}
	if err := b.look(ctx, worker.cmd, &result); err != nil {
		return result, err
	}
	after, err := server.client.XLen(ctx, events.DefaultNamespace.Results()).Result()
	result.Polls = after - before
	return result, err
}

// spreadPolls has the repositories polled one after the other in the course of an hour, as they are once they
// have been watched for long.
func (b *idleBench) spreadPolls(ctx context.Context, server *benchRedis) error {
	now, err := server.client.Time(ctx).Result()
	if err != nil {
		return err
	}
	_, err = server.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i := range b.repos {
			at := now.Add(time.Duration(i) * time.Hour / time.Duration(b.repos))
			pipe.HSet(ctx, events.DefaultNamespace.Watches()+"of:"+idleRepo(i), "asked", at.Add(-2*time.Hour).UnixMilli())
			pipe.ZAdd(ctx, events.DefaultNamespace.Poll(), redis.Z{Score: float64(at.UnixMilli()), Member: idleRepo(i)})
		}
		return nil
	})
	return err
}

// serveRepos serves one small repository under many names.
func (b *idleBench) serveRepos(ctx context.Context, dir string) (*gitserver.Server, error) {
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
	for i := 1; i < b.repos; i++ {
		if err := os.Symlink(filepath.Base(git.Dir(idleRepo(0))), git.Dir(idleRepo(i))); err != nil {
			git.Close()
			return nil, err
		}
	}
	return git, nil
}

func idleRepo(i int) string { return fmt.Sprintf("bench/idle-%d", i) }

// syncAll has every repository watched, and so polled and synced.
func (b *idleBench) syncAll(ctx context.Context, server *benchRedis, git *gitserver.Server) error {
	return b.syncIn(ctx, server, events.DefaultNamespace, git)
}

// syncIn is syncAll in a namespace.
func (b *idleBench) syncIn(ctx context.Context, server *benchRedis, namespace events.Namespace, git *gitserver.Server) error {
	urls := make([]string, b.repos)
	for i := range urls {
		urls[i] = git.URL(idleRepo(i))
	}
	if err := watchAll(ctx, server.client, namespace, urls); err != nil {
		return err
	}
	for {
		synced, err := server.client.XLen(ctx, namespace.Results()).Result()
		if err != nil || synced >= 2*int64(b.repos) { // each was polled, and synced
			return err
		}
		if !pause(ctx, 50*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// look leaves the worker alone, and looks at what it takes.
func (b *idleBench) look(ctx context.Context, worker *exec.Cmd, result *idleResult) error {
	before, err := processorTime(worker.Process.Pid)
	if err != nil {
		return err
	}
	if !pause(ctx, b.duration) {
		return context.Cause(ctx)
	}
	after, err := processorTime(worker.Process.Pid)
	if err != nil {
		return err
	}
	result.Core = (after - before).Seconds() / b.duration.Seconds()
	if result.RSS, err = processMemory(worker.Process.Pid, "VmRSS"); err != nil {
		return err
	}
	result.Peak, err = processMemory(worker.Process.Pid, "VmHWM")
	return err
}

// processorTime is what a process has taken, in user and kernel mode; Linux counts it in ticks of 10 ms.
func processorTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may have anything in it
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat makes no sense", pid)
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	kernel, err := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+kernel) * 10 * time.Millisecond, err
}

// processMemory reads a line of a process' status, in bytes.
func processMemory(pid int, name string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(status), name+":")
	var kB int64
	if _, err := fmt.Sscan(rest, &kB); err != nil || !found {
		return 0, fmt.Errorf("/proc/%d/status does not say %s", pid, name)
	}
	return kB << 10, nil
}
