// Command lockstep keeps shared Git clones in step with their remotes.
//
// Exit codes: 0 done, 1 failed, 2 wrong use, 3 Redis unavailable, 4 timed out.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/internal/redisx"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], streams{os.Stdout, os.Stderr, os.Environ()}))
}

// streams are what the process was given by its parent.
type streams struct {
	stdout, stderr io.Writer
	environ        []string
}

// run is main without its globals.
func run(ctx context.Context, args []string, std streams) int {
	root := newRootCommand(std)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintf(std.stderr, "lockstep: %s\n", rendered(oneLine(err), false))
	return exitCode(err)
}

// oneLine is the error's text on one line: several errors in one, and what YAML has to say, have more.
func oneLine(err error) string {
	var text string
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		switch {
		case text == "" || line == "":
			text += line
		case strings.HasSuffix(text, ":"):
			text += " " + line
		default:
			text += "; " + line
		}
	}
	return text
}

// The exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnavailable = 3
	exitTimedOut    = 4
)

// exitError is an error that knows its exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }

func (e *exitError) Unwrap() error { return e.err }

func usageError(err error) error { return &exitError{exitUsage, err} }

func exitCode(err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	return exitFailed
}

// redisError explains an error of a command sent to Redis: what to do, and the exit code.
func redisError(server redisx.Server, err error) error {
	_, answered := errors.AsType[redis.Error](err)
	switch unavailable := redisx.Unavailable(err); {
	case errors.Is(err, context.Canceled):
		return err
	case unavailable && answered:
		return &exitError{exitUnavailable, fmt.Errorf("redis at %s cannot serve at present; see to it, or name another with --redis: %w", server, err)}
	case unavailable:
		return &exitError{exitUnavailable, fmt.Errorf("redis at %s does not answer; start it, or name another with --redis: %w", server, err)}
	case answered:
		return fmt.Errorf("redis at %s refuses; check its password, the user's permissions and --prefix: %w", server, err)
	}
	return err
}

// noArgs refuses arguments: of a group of subcommands, as one that it does not have.
func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !cmd.HasSubCommands():
		return fmt.Errorf("takes no arguments, and got %q", args[0])
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		return fmt.Errorf("%w, did you mean %s?", err, strings.Join(like, " or "))
	}
	return err
}

// oneArg wants the argument that the command's use names.
func oneArg(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("%s is missing", argument(cmd))
	}
	return oneArgAtMost(cmd, args)
}

func oneArgAtMost(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("takes one %s, and got %q too", argument(cmd), args[1])
	}
	return nil
}

// argument is what a command's use calls its argument.
func argument(cmd *cobra.Command) string { return strings.Trim(strings.Fields(cmd.Use)[1], "[]") }

// flagsTogether refuses flags that exclude each other. Cobra does so too, later, and with an error that
// nobody can tell from the subcommand's own.
func flagsTogether(cmd *cobra.Command) error {
	if err := errors.Join(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups()); err != nil {
		return usageError(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	}
	return nil
}

// wrongUse makes an argument check's error a usage error.
func wrongUse(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
		}
		return nil
	}
}
