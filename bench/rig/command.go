// Package rig contains the common parts of the benchmarks: commands, reports, a private Redis, processes, and
// repositories.
package rig

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"lockstep/internal/app"
	"lockstep/internal/cli/term"
)

// Env is the environment of one benchmark run.
type Env struct {
	term.Streams
	Dir string // temporary, removed at the end

	out     term.Output
	mu      sync.Mutex
	program string // path of the lockstep binary, "" until one is needed
}

// Report is the result of a benchmark. If it also has a method Verdict() error, the command fails with that error.
type Report interface {
	Table(w io.Writer) error
}

// Command completes the command of a benchmark. The command exits with a usage error if check returns an error; otherwise it
// calls run.
func Command(std term.Streams, cmd *cobra.Command, check func() error, run func(context.Context, *Env) error) *cobra.Command {
	env := &Env{Streams: std}
	env.out.Add(cmd)
	cmd.Args = term.WrongUse(term.NoArgs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if err := check(); err != nil {
			return term.UsageError(err)
		}
		app.SilenceRedis()
		if env.Dir, err = os.MkdirTemp("", "lockstep-bench-"); err != nil {
			return err
		}
		defer os.RemoveAll(env.Dir)
		return run(cmd.Context(), env)
	}
	return cmd
}

// RedisFlag adds --redis to a command.
func RedisFlag(cmd *cobra.Command, url *string) {
	cmd.Flags().StringVar(url, "redis", "", "`URL` of the Redis to measure on (default: a private redis-server)")
}

// OnRedis returns a function for [Command] that opens the Redis at url and calls run.
func OnRedis(url *string, run func(context.Context, *Env, *Redis) error) func(context.Context, *Env) error {
	return func(ctx context.Context, env *Env) error {
		server, err := OpenRedis(ctx, *url)
		if err != nil {
			return err
		}
		defer server.Close()
		return run(ctx, env, server)
	}
}

// Show prints a report in the format that --output names, and returns its verdict.
func (e *Env) Show(report Report) error {
	var err error
	if e.out.IsTable() {
		err = report.Table(e.Stdout)
	} else {
		err = e.out.Document(e.Stdout, report)
	}
	if judged, ok := report.(interface{ Verdict() error }); ok && err == nil {
		err = judged.Verdict()
	}
	return err
}

// Progress prints a line to standard error.
func (e *Env) Progress(format string, args ...any) { fmt.Fprintf(e.Stderr, format+"\n", args...) }

// Alternate calls measure for each contestant in each round, so that all run under the same conditions.
func (e *Env) Alternate(rounds int, names []string, measure func(round, i int) error) error {
	for round := range rounds {
		for i, name := range names {
			e.Progress("round %d of %d: %s", round+1, rounds, name)
			if err := measure(round, i); err != nil {
				return fmt.Errorf("bench %s: %w", name, err)
			}
		}
	}
	return nil
}

// NewTable returns a writer that aligns tab-separated cells to the right. The caller must flush it.
func NewTable(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
}

// NewList returns a writer that aligns a column of labels and a column of values to the left. The caller must flush it.
func NewList(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 4, 2, ' ', 0) }
