package term

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Main runs a command until SIGINT, SIGTERM or, unless nohup ignores it, SIGHUP, and exits with the code that
// run returns. A second signal kills the process.
func Main(run func(ctx context.Context, args []string, std Streams) int) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], Streams{os.Stdout, os.Stderr, os.Environ()}))
}

// OutliveTerminal ignores the signals that would kill a service although it can work: SIGHUP when its
// terminal is closed, SIGPIPE when nothing reads its log any more, and SIGUSR1 and SIGUSR2, with which tools
// ask other services to reopen or reload files; there is nothing to reload, since files of secrets are read
// at each use. SIGQUIT still ends the process and prints its goroutines.
func OutliveTerminal() {
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGUSR1, syscall.SIGUSR2)
}
