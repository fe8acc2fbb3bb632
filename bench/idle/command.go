// Package idle measures the cost of an idle worker with many repositories.
package idle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"lockstep/bench/rig"
	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cli/term"
)

// bench holds the flags.
type bench struct {
	repos    int
	duration time.Duration
}

// NewCommand returns the command bench idle.
func NewCommand(std term.Streams) *cobra.Command {
	var b bench
	cmd := rig.RedisCommand(std, &cobra.Command{
		Use:   "idle",
		Short: "Measure an idle worker that keeps and polls many repositories",
		Long: "Watch many small repositories and let one worker sync them, then leave it alone and measure its memory and its\n" +
			"processor time. Each repository is polled once an hour, spread evenly. Without --redis it starts a private\n" +
			"redis-server.",
		Example: "  go run ./bench idle\n  go run ./bench idle --repos 10000 --duration 60s --json",
	}, b.check, b.run)
	cmd.Flags().IntVar(&b.repos, "repos", 1000, "number of repositories")
	cmd.Flags().DurationVar(&b.duration, "duration", 30*time.Second, "how long to leave the worker alone")
	return cmd
}

func (b *bench) check(func(string) bool) error {
	if b.repos < 1 || b.duration < time.Second {
		return errors.New("want at least one repository, and 1s")
	}
	return nil
}

// Report is the cost of an idle worker.
type Report struct {
	Repos    int           `json:"repos"`
	SyncedIn time.Duration `json:"synced_in_ns"`
	Core     float64       `json:"core"`  // CPU time, as a share of one core
	Polls    int64         `json:"polls"` // in that time
	RSS      int64         `json:"rss"`   // bytes
	Peak     int64         `json:"peak"`  // bytes, since the start of the process

	duration time.Duration
}

// Table prints the report as text.
func (r Report) Table(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%d watched repositories, synced in %v\nidle for %v: %.2f %% of a core with %d polls, %d MB of memory (peak %d MB)\n",
		r.Repos, r.SyncedIn.Round(time.Millisecond), r.duration, 100*r.Core, r.Polls, r.RSS>>20, r.Peak>>20)
	return err
}

func (b *bench) run(ctx context.Context, env *rig.Env, server *rig.Redis) (rig.Report, error) {
	worker, took, err := rig.Deployment{Env: env, Redis: server, Root: filepath.Join(env.Dir, "root")}.SyncFleet(ctx, b.repos)
	if err != nil {
		return nil, err
	}
	report := Report{Repos: b.repos, SyncedIn: took, duration: b.duration}
	before, err := server.Client.XLen(ctx, events.DefaultNamespace.Results()).Result()
	if err != nil {
		return nil, err
	}
	pid := worker.Cmd.Process.Pid
	cpuBefore, err := rig.CPU(pid)
	if err != nil {
		return nil, err
	}
	if !app.Sleep(ctx, b.duration) {
		return nil, context.Cause(ctx)
	}
	cpuAfter, err := rig.CPU(pid)
	if err != nil {
		return nil, err
	}
	report.Core = (cpuAfter - cpuBefore).Seconds() / b.duration.Seconds()
	if report.RSS, err = rig.Memory(pid, "VmRSS"); err != nil {
		return nil, err
	}
	if report.Peak, err = rig.Memory(pid, "VmHWM"); err != nil {
		return nil, err
	}
	after, err := server.Client.XLen(ctx, events.DefaultNamespace.Results()).Result()
	report.Polls = after - before
	return report, err
}
