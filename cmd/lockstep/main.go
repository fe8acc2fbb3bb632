// Command lockstep keeps shared Git clones in step with their remotes.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 Redis unavailable, 4 timed out, 5 token removed.
package main

import (
	"lockstep/internal/cli"
	"lockstep/internal/term"
)

func main() { term.Main(cli.Run) }
