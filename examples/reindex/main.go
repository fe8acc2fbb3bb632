// Command reindex measures what readers of an index see while it is rebuilt repeatedly, for four strategies. A lock
// serializes rebuilds but does not protect readers. Only a version that is built separately and then published in one
// atomic step is always available and complete; this is how Lockstep publishes trees. The index is a hash in Redis;
// requests to rebuild it are events.
//
//	reindex
//	reindex -redis 127.0.0.1:6379
//
// Without -redis it uses an embedded Redis, which is slower than a real one.
// It only uses Lockstep's public packages and leaves nothing in Redis.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"lockstep/examples/internal/redisserver"
)

func main() {
	address := flag.String("redis", "", "`address` of the Redis (default: an embedded one)")
	b := bench{log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	flag.IntVar(&b.docs, "docs", 500, "documents in the index")
	flag.IntVar(&b.readers, "readers", 4, "concurrent readers, each of which reads all documents repeatedly")
	flag.IntVar(&b.rounds, "rounds", 50, "rounds for each strategy; each has two concurrent requests to rebuild the index")
	flag.DurationVar(&b.pause, "pause", 20*time.Millisecond, "time between rounds")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx, *address, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "reindex:", err)
		os.Exit(1)
	}
}

// run measures with the Redis at an address or, without one, with an embedded one.
func (b *bench) run(ctx context.Context, address string, out io.Writer) error {
	server, err := redisserver.Connect(ctx, address)
	if err != nil {
		return err
	}
	defer server.Close()
	b.open = server.Open
	return b.table(ctx, out)
}

// table measures every strategy and prints a row for each.
func (b *bench) table(ctx context.Context, out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "strategy\treads\tavailable\tincomplete\tmixed\trebuilds\t")
	for _, s := range strategies {
		t, rebuilds, err := b.measure(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(w, "%s\t%d\t%.3f %%\t%.3f %%\t%.3f %%\t%d\t\n", s.name, t.reads(),
			t.percent(complete), t.percent(incomplete), t.percent(mixed), rebuilds)
	}
	return w.Flush()
}
