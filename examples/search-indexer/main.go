// Command search-indexer keeps a word index of every repository up to date from the results of Lockstep's workers: it reads
// only the files that a result lists as changed. Any number of processes share the work and the folder of indexes. It uses
// only Lockstep's public packages.
//
//	search-indexer -redis 127.0.0.1:6379 -root /srv/repos -index /srv/index run
//	search-indexer -index /srv/index search retry
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"lockstep/events"
)

func main() {
	address := flag.String("redis", "127.0.0.1:6379", "`address` of the workers' Redis")
	prefix := flag.String("prefix", string(events.DefaultNamespace), "`prefix` of the workers' keys in it")
	root := flag.String("root", "repos", "`directory` of the published trees")
	index := flag.String("index", "index", "`directory` of the indexes")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: search-indexer [flags] run | search WORD")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := service{
		root: *root, indexes: indexes(*index), log: slog.Default(), prefix: *prefix,
		open: func() redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: *address, MaxRetries: -1, DialerRetries: 1}) // no retries: a command whose reply was lost may have been executed
		},
	}
	redis.SetLogger(&logging.VoidLogger{}) // it would log errors that it also returns
	if err := command(ctx, os.Stdout, s, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "search-indexer:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, out io.Writer, s service, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "run":
		client := s.open()
		defer client.Close()
		if err := client.Ping(ctx).Err(); err != nil {
			return fmt.Errorf("the workers' Redis does not answer; start it, or name another with -redis: %w", err)
		}
		return s.run(ctx)
	case len(args) == 2 && args[0] == "search":
		hits, err := s.indexes.search(args[1])
		for _, hit := range hits {
			fmt.Fprintln(out, hit)
		}
		return err
	case len(args) == 0:
		return errors.New("missing command: run or search WORD")
	}
	return fmt.Errorf("invalid arguments: %s", strings.Join(args, " "))
}
