package cli

import (
	"context"

	"lockstep/internal/cli/term"
)

// Run runs the lockstep command with these arguments and returns its exit code.
func Run(ctx context.Context, args []string, std term.Streams) int {
	return term.Execute(ctx, newRootCommand(std), args, std)
}
