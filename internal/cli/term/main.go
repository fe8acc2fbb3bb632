package term

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Main runs a command until SIGINT or SIGTERM and exits with the code that run returns. A second signal kills the process.
func Main(run func(ctx context.Context, args []string, std Streams) int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], Streams{os.Stdout, os.Stderr, os.Environ(), os.Stdin}))
}
