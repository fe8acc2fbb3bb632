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

// A dying worker is the worker of lockstep serve in a process that kills itself with SIGKILL when it
// passes a named moment for the n-th time. The moments lie before and after each script that takes a
// change through Redis, and between the steps of a sync.

// scriptFiles are the sources of the scripts, by the step that each is.
var scriptFiles = map[string][]string{
	"read":    {"events/stream/take.lua"},
	"acquire": {"locking/lua/clock.lua", "locking/lua/atonce.lua", "locking/lua/queue.lua", "locking/lua/acquire.lua"},
	"settle":  {"events/stream/groups.lua", "events/stream/settle.lua"},
	"park":    {"events/stream/nack.lua"},
	"release": {"locking/lua/free.lua", "locking/lua/clock.lua", "locking/lua/queue.lua", "locking/lua/release.lua"},
}

// settleSiblings is the settle script when a lease's change is settled, and now what waits along with it.
const settleSiblings = "settle siblings"

// moment is one of those at which a worker dies.
type moment struct {
	name   string
	passes int // it dies at a random one of the first so many
}

// atRandom is the moment that the test chooses, not the worker.
const atRandom = "at random"

// moments are all that are named.
var moments = []moment{
	{"before read", 20}, {"after read", 20},
	{"before acquire", 6}, {"after acquire", 6},
	{"fenced", 4}, {"bound", 4},
	{"listed", 3}, {"fetched", 3}, // before and after the fetch
	{"moved", 3}, {"built", 3},
	{"confirmed", 3}, {"flipped", 3}, // before and after the flip
	{"retired", 3},
	{"before settle", 4}, {"after settle", 4},
	{"before settle siblings", 2}, {"after settle siblings", 2},
	{"before park", 1}, {"after park", 1},
	{"before release", 4}, {"after release", 4},
}

// death is a moment and how often it is yet to be passed.
type death struct {
	moment  string
	left    atomic.Int64
	scripts map[string]string // SHA-1 to step
	settled sync.Map          // leases, by their tokens, whose changes are settled
}

// pass kills this process when its time has come.
func (d *death) pass(moment string) {
	if moment == d.moment && d.left.Add(-1) == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func (d *death) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *death) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook passes a script's two moments: the command is not sent yet, and the reply has come.
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

// step is the step that a command takes, or "": EVALSHA sha numkeys key … arg …, where the settle script's
// third to fifth arguments are 1, the lease's token and its fence.
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

// dyingMain is the main function of a dying worker's process.
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
		return app.RunWorker(cmd.Context(), app.Config{
			Config: cfg, Redis: server.With(&d), Log: app.NewLogger(std.Stderr, cfg, slog.LevelInfo), Metrics: telemetry.New(), Step: d.pass,
		})
	}}
	config.AddFlags(cmd.Flags(), config.Common|config.Working|config.Serving)
	cmd.Flags().StringVar(&d.moment, "moment", "", "")
	cmd.Flags().Int64Var(&left, "pass", 0, "")
	cmd.Flags().StringToStringVar(&d.scripts, "scripts", nil, "")
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		os.Exit(term.ExitCode(err))
	}
	os.Exit(term.ExitDone)
}

// scriptsFlag is the flag that tells a dying worker the scripts.
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

// dying is a dying worker's process, seen from the test.
type dying struct {
	cmd  *exec.Cmd
	log  logtest.Buffer
	done chan struct{}
}

// die runs a dying worker until it is dead: by its own hand at the n-th pass of a named moment, or
// else after so long by ours. It reports whether it was the former.
func die(dir string, args []string, moment string, pass int, after time.Duration) (byItself bool, err error) {
	args = slices.Concat(args, []string{"--moment", moment, "--pass", fmt.Sprint(pass)})
	d := &dying{cmd: exec.Command("lockstep-dying", args...), done: make(chan struct{})}
	d.cmd.Dir, d.cmd.Stdout, d.cmd.Stderr = dir, &d.log, &d.log
	if err := d.cmd.Start(); err != nil {
		return false, err
	}
	go func() { _ = d.cmd.Wait(); close(d.done) }()
	select {
	case <-d.done:
		byItself = true
	case <-time.After(after):
		_ = d.cmd.Process.Kill()
		<-d.done
	}
	if status, ok := d.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		return false, fmt.Errorf("a worker that was to be killed %s ended by itself: %v\n%s", moment, d.cmd.ProcessState, proctest.Tail(d.log.String(), 2000))
	}
	return byItself, nil
}
