package term

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NewRoot configures a root command: usage errors get their own exit code, and only [Execute] prints errors.
func NewRoot(std Streams, root *cobra.Command) *cobra.Command {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Args = WrongUse(NoArgs)
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return checkFlags(cmd) }
	root.SetOut(std.Stdout)
	root.SetErr(std.Stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 { // the flag is one of that unknown command
			err = NoArgs(cmd, args)
		}
		return UsageError(fmt.Errorf("%w; see %s --help", readable(err), cmd.CommandPath()))
	})
	return root
}

// readable replaces the errors of package strconv and time in the errors of flags.
func readable(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	flag := invalid.GetFlag()
	want := map[string]string{
		"int": "a whole number", "int64": "a whole number", "uint64": "a whole number, without sign",
		"float64": "a number", "bool": "true or false", "duration": "a duration, such as 30s or 5m",
	}[flag.Value.Type()]
	if want == "" {
		return err
	}
	return fmt.Errorf("invalid argument %q for %q flag: want %s", invalid.GetValue(), "--"+flag.Name, want)
}

// Execute runs a command, prints its error and returns its exit code.
func Execute(ctx context.Context, root *cobra.Command, args []string, std Streams) int {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	silent, ok := errors.AsType[*ExitError](err)
	if err != nil && !(ok && silent.Err == nil) {
		fmt.Fprintf(std.Stderr, "%s: %s\n", root.Name(), Clean(OneLine(err)))
	}
	return ExitCode(err)
}
