package term

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// NoArgs rejects arguments; for a group, as an unknown subcommand.
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

// OneArg requires the one argument named in the command's Use.
func OneArg(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("%s is missing", argument(cmd))
	}
	return OneArgAtMost(cmd, args)
}

// OneArgAtMost accepts no argument or the one that the command's use names.
func OneArgAtMost(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("takes one %s, and got %q too", argument(cmd), args[1])
	}
	return nil
}

// argument returns the name of the argument in the command's Use.
func argument(cmd *cobra.Command) string { return strings.Trim(strings.Fields(cmd.Use)[1], "[]") }

// checkFlags rejects missing and conflicting flags. Cobra also does so, but later and with an error that
// cannot be recognized.
func checkFlags(cmd *cobra.Command) error {
	if err := errors.Join(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups()); err != nil {
		return UsageError(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	}
	return nil
}

// WrongUse turns the errors of an argument check into usage errors.
func WrongUse(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return UsageError(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
		}
		return nil
	}
}
