package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

// newRoot completes a root command: wrong usage has an exit code of its own, and is reported by [execute] alone.
func newRoot(std streams, root *cobra.Command) *cobra.Command {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Args = wrongUse(noArgs)
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return flagsTogether(cmd) }
	root.CompletionOptions = cobra.CompletionOptions{DisableDefaultCmd: true} // the default one accepts any shell
	root.SetOut(std.stdout)
	root.SetErr(std.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	})
	return root
}

// execute runs a command with these arguments, prints its error, and returns its exit code.
func execute(ctx context.Context, root *cobra.Command, args []string, std streams) int {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintf(std.stderr, "%s: %s\n", root.Name(), rendered(oneLine(err), false))
	}
	return exitCode(err)
}
