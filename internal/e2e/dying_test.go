package e2e

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/internal/app"
	"lockstep/internal/cli/term"
	"lockstep/internal/config"
	"lockstep/internal/logtest"
	"lockstep/internal/proctest"
	"lockstep/internal/telemetry"
)

// A dying worker is the worker of lockstep serve in a process that kills itself with SIGKILL when it passes a kill point for
// the n-th time. There are kill points before and after each Lua script that processes a change, and between the steps of a
// sync.

// scriptFiles has the sources of each script.
var scriptFiles = map[string][]string{
	"read":    {"events/stream/alive.lua", "events/stream/take.lua"},
	"acquire": {"locking/lua/clock.lua", "locking/lua/deadline.lua", "locking/lua/atonce.lua", "locking/lua/queue.lua", "locking/lua/acquire.lua"},
	"settle":  {"events/stream/groups.lua", "events/stream/notes.lua", "events/stream/settle.lua"},
	"park":    {"events/stream/notes.lua", "events/stream/nack.lua"},
	"release": {"locking/lua/free.lua", "locking/lua/clock.lua", "locking/lua/queue.lua", "locking/lua/release.lua"},
}

// settleSiblings is a further call of the settle script for the same lease, which settles waiting changes of the repository.
const settleSiblings = "settle siblings"

type killPoint struct {
	name   string
	passes int // the worker dies at a random one of the first passes
}

// atRandom is a kill by the test, at a random time.
const atRandom = "at random"

var killPoints = []killPoint{
	{"before read", 20}, {"after read", 20},
	{"before acquire", 6}, {"after acquire", 6},
	{"fenced", 4}, {"bound", 4},
	{"listed", 3}, {"fetched", 3}, // before and after the fetch
	{"moved", 3}, {"taken", 2}, {"built", 3},
	{"confirmed", 3}, {"flipped", 3}, // before and after the flip
	{"retired", 3},
	{"linked", 2}, {"prepared", 2},
	{"before settle", 4}, {"after settle", 4},
	{"before settle siblings", 2}, {"after settle siblings", 2},
	{"before park", 1}, {"after park", 1},
	{"before release", 4}, {"after release", 4},
}

// death is a Redis hook that kills the process at a kill point.
type death struct {
	point   string
	left    atomic.Int64      // passes until the kill
	scripts map[string]string // step by SHA-1 of its script
	settled sync.Map          // tokens of leases whose changes are settled
}

// pass kills the process if it is the last pass of the chosen kill point.
func (d *death) pass(point string) {
	if point == d.point && d.left.Add(-1) == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func (d *death) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *death) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook passes the kill points before a script is sent and after its reply.
func (d *death) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		step := d.step(cmd.Args())
		if step == "" {
			return next(ctx, cmd)
		}
		d.pass("before " + step)
		err := next(ctx, cmd)
		if err == nil {
			d.pass("after " + step)
		}
		return err
	}
}

// step returns the step of an EVALSHA command, or "" for other commands. The settle script's third to fifth arguments are 1,
// the token of the lease and its fence.
func (d *death) step(args []any) string {
	if len(args) < 3 || args[0] != "evalsha" {
		return ""
	}
	sha, _ := args[1].(string)
	step := d.scripts[sha]
	if keys, _ := args[2].(int); step == "settle" && args[3+keys+2] == 1 {
		if _, again := d.settled.LoadOrStore(args[3+keys+3], true); again {
			return settleSiblings
		}
	}
	return step
}

// dyingMain is the main function of a dying worker.
func dyingMain() {
	var d death
	var left int64
	std := term.Streams{Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ()}
	cmd := &cobra.Command{SilenceUsage: true, RunE: func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(cmd.Flags(), "", std.Environ)
		if err != nil {
			return err
		}
		server, err := cfg.RedisServer()
		if err != nil {
			return err
		}
		d.left.Store(left)
		run := app.RunWorker
		if cfg.Cell != "" {
			run = app.RunCellWorker
		}
		return run(cmd.Context(), app.Config{
			Config: cfg, Redis: server.With(&d), Log: app.NewLogger(std.Stderr, cfg, slog.LevelInfo), Metrics: telemetry.New(), Step: d.pass,
		})
	}}
	config.AddFlags(cmd.Flags(), config.Common|config.Working|config.Serving)
	cmd.Flags().StringVar(&d.point, "point", "", "")
	cmd.Flags().Int64Var(&left, "pass", 0, "")
	cmd.Flags().StringToStringVar(&d.scripts, "scripts", nil, "")
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		os.Exit(term.ExitCode(err))
	}
	os.Exit(term.ExitDone)
}

// scriptsFlag returns the flag with the hash and step of each script.
func scriptsFlag(t *testing.T) string {
	t.Helper()
	var pairs []string
	for step, files := range scriptFiles {
		var source bytes.Buffer
		for _, file := range files {
			source.Write(proctest.Must(os.ReadFile(filepath.Join("../..", file)))(t))
		}
		sum := sha1.Sum(source.Bytes())
		pairs = append(pairs, hex.EncodeToString(sum[:])+"="+step)
	}
	return "--scripts=" + strings.Join(pairs, ",")
}

// runUntilKilled runs a dying worker until it kills itself at the given pass of a kill point, and otherwise kills it after the
// given time. It reports whether the worker killed itself.
func runUntilKilled(dir string, args []string, point string, pass int, after time.Duration) (byItself bool, err error) {
	args = slices.Concat(args, []string{"--point", point, "--pass", fmt.Sprint(pass)})
	var log logtest.Buffer
	cmd, done := exec.Command("lockstep-dying", args...), make(chan struct{})
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &log, &log
	if err := cmd.Start(); err != nil {
		return false, err
	}
	go func() { _ = cmd.Wait(); close(done) }()
	select {
	case <-done:
		byItself = true
	case <-time.After(after):
		_ = cmd.Process.Kill()
		<-done
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		return false, fmt.Errorf("worker exited instead of being killed %s: %v\n%s", point, cmd.ProcessState, proctest.Tail(log.String(), 2000))
	}
	return byItself, nil
}
