package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"lockstep/events"
	"lockstep/internal/app"
	"lockstep/internal/cells"
	"lockstep/internal/cells/move"
	"lockstep/internal/config"
	"lockstep/internal/logtest"
	"lockstep/internal/proctest"
	"lockstep/internal/term"
)

// A dying worker is the worker of lockstep serve in a process that kills itself with SIGKILL when it passes a step of a sync or of a move
// to another cell for the n-th time. It can stop itself with SIGSTOP instead. With --move it is lockstep repos move.

// death kills the process at a step.
type death struct {
	point string
	stop  bool
	left  atomic.Int64 // passes until the kill
}

// pass kills the process if it is the last pass of the chosen step.
func (d *death) pass(point string) {
	switch {
	case point != d.point || d.left.Add(-1) != 0:
	case d.stop:
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	default:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// dyingMain is the main function of a dying worker.
func dyingMain() {
	var d death
	var left int64
	var moved, to string
	std := term.Streams{Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ()}
	cmd := &cobra.Command{SilenceUsage: true, RunE: func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(cmd.Flags(), "", std.Environ)
		if err != nil {
			return err
		}
		cfg.Roles = []string{config.RoleWorker}
		d.left.Store(left)
		if moved != "" {
			return moveDying(cmd.Context(), cfg, moved, to, d.pass)
		}
		return app.Serve(cmd.Context(), app.Config{Config: cfg, Log: app.NewLogger(std.Stderr, cfg, slog.LevelInfo), Step: d.pass})
	}}
	config.AddFlags(cmd.Flags(), config.Common|config.Working|config.Serving)
	cmd.Flags().StringVar(&d.point, "point", "", "")
	cmd.Flags().BoolVar(&d.stop, "stop", false, "")
	cmd.Flags().Int64Var(&left, "pass", 0, "")
	cmd.Flags().StringVar(&moved, "move", "", "")
	cmd.Flags().StringVar(&to, "to", "", "")
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		os.Exit(term.ExitCode(err))
	}
	os.Exit(term.ExitDone)
}

// moveDying moves a repository from the cell of cfg to another one.
func moveDying(ctx context.Context, cfg config.Config, moved, to string, pass func(string)) error {
	server, err := cfg.RedisServer()
	if err != nil {
		return err
	}
	client := server.Open()
	defer client.Close()
	directory, err := cells.Open(ctx, client)
	if err != nil {
		return err
	}
	repo, err := events.ParseRepoPath(moved)
	if err != nil {
		return err
	}
	mover := move.Mover{
		Directory: directory, Redis: client, Lease: cfg.Lease, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Step: func(name string, _ events.RepoPath) { pass("move " + name) },
	}
	return mover.Move(ctx, repo, cfg.Cell, to, true)
}

// runUntilKilled runs a dying worker until it kills itself at the given pass of a step, and otherwise kills it after the
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
