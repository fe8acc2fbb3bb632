package main

import "context"

// run runs the lockstep command with these arguments and returns its exit code.
func run(ctx context.Context, args []string, std streams) int {
	return execute(ctx, newRootCommand(std), args, std)
}
