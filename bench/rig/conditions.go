package rig

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"lockstep/internal/app"
	"lockstep/internal/gitserver"
	"lockstep/internal/stats"
)

// Conditions are what the figures of a run depend on. Each report begins with them.
type Conditions struct {
	Commit      string        `json:"commit"` // of the benchmarks
	Sides       []Side        `json:"sides,omitempty"`
	Go          string        `json:"go"`
	Redis       string        `json:"redis"`
	Git         string        `json:"git"`
	Platform    string        `json:"platform"`
	Cores       int           `json:"cores"`
	Load        [2]string     `json:"load"` // load averages of a minute, before and after the run
	Fsync       time.Duration `json:"fsync_ns"`
	Dir         string        `json:"dir"` // where fsync was measured: the folder of Redis and of volumes
	AppendFsync string        `json:"appendfsync"`
}

func readConditions(ctx context.Context, dir, appendFsync string) (c Conditions, err error) {
	build := app.ReadBuild()
	c = Conditions{
		Commit: cmp.Or(build.Revision[:min(12, len(build.Revision))], "unknown"), Go: build.Go, Platform: build.Platform, Cores: runtime.NumCPU(), Dir: dir, AppendFsync: appendFsync,
		Redis: "none", Git: "none",
	}
	if build.Revision == "" { // Go does not see the repository of a git worktree
		if commit, err := gitserver.Git(ctx, ".", "", "rev-parse", "--short=12", "HEAD"); err == nil {
			c.Commit = commit
		}
	}
	if build.Modified {
		c.Commit += " with changes"
	}
	if version, err := gitserver.Git(ctx, "/", "", "version"); err == nil {
		c.Git = strings.TrimPrefix(version, "git version ")
	}
	if version, err := exec.CommandContext(ctx, "redis-server", "--version").Output(); err == nil {
		_, version, _ := strings.Cut(string(version), "v=")
		c.Redis, _, _ = strings.Cut(version, " ")
	}
	c.Load[0] = loadAverage()
	c.Fsync, err = FsyncTime(dir)
	return c, err
}

func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// FsyncTime returns the median time of 50 fsyncs, each after 4 KiB were appended to a file in dir.
func FsyncTime(dir string) (time.Duration, error) {
	file, err := os.CreateTemp(dir, "fsync-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	took := make([]time.Duration, 50)
	for i := range took {
		if _, err := file.Write(make([]byte, 4096)); err != nil {
			return 0, err
		}
		began := time.Now()
		if err := file.Sync(); err != nil {
			return 0, fmt.Errorf("measure fsync: %w", err)
		}
		took[i] = time.Since(began)
	}
	return stats.Median(took), nil
}

func (c Conditions) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "commit %s, %s, Redis %s with appendfsync %s, git %s, %s, %d cores\n", c.Commit, c.Go, c.Redis, c.AppendFsync, c.Git, c.Platform, c.Cores)
	for _, side := range c.Sides {
		fmt.Fprintf(&b, "%s: %s\n", side.Name, side.Version)
	}
	fmt.Fprintf(&b, "load average %s before, %s after; fsync of 4 KiB in %s: %s ms\n", c.Load[0], c.Load[1], filepath.Dir(c.Dir), Millis(c.Fsync))
	return b.String()
}
