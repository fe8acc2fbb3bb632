// Package rig contains the common parts of the benchmarks: commands, reports, a private Redis, processes, and
// repositories.
package rig

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"lockstep/internal/redisx"
	"lockstep/internal/term"
)

// Env is the environment of one benchmark run.
type Env struct {
	term.Streams
	Dir string // temporary, removed at the end

	out         term.Output
	appendFsync string
	conditions  Conditions

	mu       sync.Mutex
	cleanups []func()
}

// Cleanup adds a function to call at the end of the run. The function that was added last is called first.
func (e *Env) Cleanup(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cleanups = append(e.cleanups, f)
}

// Close calls the functions that Cleanup added.
func (e *Env) Close() {
	for _, cleanup := range slices.Backward(e.cleanups) {
		cleanup()
	}
}

// Report is the result of a benchmark. If it also has a method Verdict() error, the command fails with that error.
type Report interface {
	Table(w io.Writer) error
}

// document is a report in JSON or YAML.
type document struct {
	Conditions Conditions `json:"conditions"`
	Report     Report     `json:"report"`
}

// check validates the flags, and may set defaults. given reports whether a flag was set.
type check = func(given func(flag string) bool) error

// Command completes the command of a benchmark. The command exits with a usage error if check returns an error; otherwise it
// calls run, prints the report in the format that --output names, and returns its verdict.
func Command(std term.Streams, cmd *cobra.Command, check check, run func(context.Context, *Env) (Report, error)) *cobra.Command {
	env := &Env{Streams: std}
	env.out.Add(cmd)
	cmd.Flags().StringVar(&env.appendFsync, "appendfsync", "always", "when Redis flushes its log to disk: always, everysec or no; off: it has no log")
	cmd.Args = term.WrongUse(term.NoArgs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if err := check(cmd.Flags().Changed); err != nil {
			return term.UsageError(err)
		}
		if !slices.Contains([]string{"always", "everysec", "no", fsyncOff}, env.appendFsync) {
			return term.UsageError(fmt.Errorf("--appendfsync is %q; want always, everysec, no or off", env.appendFsync))
		}
		if env.Dir, err = os.MkdirTemp("", "lockstep-bench-"); err != nil {
			return err
		}
		defer os.RemoveAll(env.Dir)
		defer env.Close()
		if env.conditions, err = readConditions(cmd.Context(), env.Dir, env.appendFsync); err != nil {
			return err
		}
		report, err := run(cmd.Context(), env)
		if err != nil {
			return err
		}
		return env.show(report)
	}
	return cmd
}

// WorkerCommand completes the hidden command of a process that a benchmark starts, and adds --redis. It passes that Redis to run.
func WorkerCommand(cmd *cobra.Command, args cobra.PositionalArgs, run func(*cobra.Command, []string, redisx.Server) error) *cobra.Command {
	var url string
	cmd.Flags().StringVar(&url, "redis", "", "`URL` of the Redis to use")
	cmd.Hidden, cmd.Args = true, term.WrongUse(args)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		server, err := redisx.Parse(url, nil)
		if err != nil {
			return term.UsageError(err)
		}
		return run(cmd, args, server)
	}
	return cmd
}

// show prints the conditions and a report, and returns its verdict.
func (e *Env) show(report Report) (err error) {
	e.conditions.Load[1] = loadAverage()
	if e.out.IsTable() {
		fmt.Fprint(e.Stdout, e.conditions)
		err = report.Table(e.Stdout)
	} else {
		err = e.out.Document(e.Stdout, document{e.conditions, report})
	}
	if judged, ok := report.(interface{ Verdict() error }); ok && err == nil {
		err = judged.Verdict()
	}
	return err
}

// Progress prints a line to standard error.
func (e *Env) Progress(format string, args ...any) { fmt.Fprintf(e.Stderr, format+"\n", args...) }

// Alternate calls measure for each contestant in each round, beginning with another one each time, so that all run under the same
// conditions.
func (e *Env) Alternate(rounds int, names []string, measure func(round, i int) error) error {
	for round := range rounds {
		for n := range names {
			i := (n + round) % len(names)
			e.Progress("round %d of %d: %s", round+1, rounds, names[i])
			if err := measure(round, i); err != nil {
				return fmt.Errorf("bench %s: %w", names[i], err)
			}
		}
	}
	return nil
}

// Rotated returns the items in order, beginning with another one in each round.
func Rotated[T any](items []T, round int) []T {
	first := round % len(items)
	return slices.Concat(items[first:], items[:first])
}

// NewTable returns a writer that aligns tab-separated cells to the right. The caller must flush it.
func NewTable(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
}
