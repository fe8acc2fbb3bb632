package term

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// NoArgs refuses arguments: of a group of subcommands, as one that it does not have.
func NoArgs(cmd *cobra.Command, args []string) error {
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

// OneArg wants the argument that the command's use names.
func OneArg(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("%s is missing", argument(cmd))
	}
	return OneArgAtMost(cmd, args)
}

func OneArgAtMost(cmd *cobra.Command, args []string) error {
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
		return UsageError(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	}
	return nil
}

// WrongUse makes an argument check's error a usage error.
func WrongUse(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return UsageError(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
		}
		return nil
	}
}
