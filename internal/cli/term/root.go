package term

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// NewRoot configures a root command: usage errors get their own exit code, and only [Execute] prints errors.
func NewRoot(std Streams, root *cobra.Command) *cobra.Command {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Args = WrongUse(NoArgs)
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return checkFlags(cmd) }
	root.CompletionOptions = cobra.CompletionOptions{DisableDefaultCmd: true} // the default accepts any shell
	root.SetOut(std.Stdout)
	root.SetErr(std.Stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return UsageError(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	})
	return root
}

// Execute runs a command, prints its error and returns its exit code.
func Execute(ctx context.Context, root *cobra.Command, args []string, std Streams) int {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	silent, ok := errors.AsType[*ExitError](err)
	if err != nil && !(ok && silent.Err == nil) {
		fmt.Fprintf(std.Stderr, "%s: %s\n", root.Name(), Rendered(OneLine(err), false))
	}
	return ExitCode(err)
}
