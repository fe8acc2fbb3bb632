// Command measure counts what a reader of Lockstep has to hold in the head: lines, exported names, Lua
// scripts, settings, words and long functions. Run it from the root of a checkout. Its test counts what one
// push crosses; make measure prints both.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := printSize(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		stop()
		os.Exit(1)
	}
}
